// A softmax over the keys, in powers of two.

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float power_of_two(float x) {  // one instruction; below 2^-126 it is 0
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Σ exp(s) of the scores so far, as sum · exp(largest): no score is too large.
struct RunningSum {
    float largest = -3.4e38f;  // and not −∞, whose distance to a score of −∞ is NaN
    float sum = 0.f;

    DEVICE void add(float s) {
        const float smaller = power_of_two(-LOG2_E * fabsf(s - largest));
        sum = s > largest ? sum * smaller + 1.f : sum + smaller;
        largest = fmaxf(s, largest);
    }
    // Of nothing so large that all codes are 0: with −∞, that of a score of −∞ would be NaN.
    DEVICE float logarithm() const { return sum == 0.f ? LARGEST : largest + logf(sum); }
};
