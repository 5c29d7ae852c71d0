// What becomes of a query's output before it is stored: all its heads are multiplied by one factor.
//
// OUTPUT, set by the compiler's command line, chooses the factor; OUTPUT_AS_IT_IS adds no code.

#define OUTPUT_AS_IT_IS 0
#define OUTPUT_GAIN 1  // gain
#define OUTPUT_ROWS 2  // gain · a factor given for each query
#define OUTPUT_RMS 3   // gain · rsqrt(mean over all heads of o² + eps)

struct Output {
    const float *row_factor;  // [factors, query]; of packed sequences [token]
    float *total_factor;      // [batch, query]: what RMS multiplied by, for the backward
    int batch_per_factor;     // so many consecutive batch elements share a row of factors
    float gain, eps;
    float inverse_size;  // 1 / (H · D), without what a head was padded by
};

// `given` is where the query's factor lies; `squares` is the sum of o² over all heads.
DEVICE float output_factor(const Output &output, long long given, float squares) {
#if OUTPUT == OUTPUT_AS_IT_IS
    return 1.f;
#elif OUTPUT == OUTPUT_GAIN
    return output.gain;
#elif OUTPUT == OUTPUT_ROWS
    return output.gain * __ldg(output.row_factor + given);
#else
    return output.gain * inverse_root_of(squares * output.inverse_size + output.eps);
#endif
}

// For the backward: all gradients are linear in the upstream one, so that a constant gain can wait
// for the last step. `x` itself otherwise, and not times 1, which might reorder instructions.
DEVICE float with_gain(const Output &output, float x) {
#if OUTPUT == OUTPUT_GAIN
    return x * output.gain;
#else
    return x;
#endif
}

