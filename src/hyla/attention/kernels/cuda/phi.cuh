// φ and its derivative, as PHI chooses; in front of every kernel's own source.

#define DEVICE __device__ __forceinline__

// 1 / √x of a mean of squares; where they overflowed no number, rather than a silent 0.
DEVICE float inverse_root_of(float x) { return rsqrtf(x) + (x - x); }

constexpr float LARGEST = 3.4028235e38f;

// A bias of −∞ masks the pair in its head: the score is 0 and has no gradient.
DEVICE bool masks_pair(float bias) { return bias < -LARGEST; }

#define PHI_IDENTITY 0
#define PHI_RELU 1
#define PHI_GELU_TANH 2
#define PHI_GELU 3
#define PHI_SILU 4

struct Activation {
    float value, slope;
};

DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }

DEVICE Activation activate(float x) {
#if PHI == PHI_IDENTITY
    return {x, 1.f};
#elif PHI == PHI_RELU
    return {x <= 0.f ? 0.f : x, x <= 0.f ? 0.f : 1.f};  // NaN goes through, as in torch
#elif PHI == PHI_GELU_TANH  // (1 + tanh u) / 2 = sigmoid(2u)
    const float doubled_root = 1.5957691216057308f;  // 2 √(2/π)
    const float gate = sigmoid(doubled_root * x * (1.f + 0.044715f * x * x));
    const float inner_slope = doubled_root * (1.f + 3.f * 0.044715f * x * x);
    return {x * gate, gate + x * gate * (1.f - gate) * inner_slope};
#elif PHI == PHI_GELU
    const float cumulative = 0.5f * (1.f + erff(0.7071067811865476f * x));
    const float density = 0.3989422804014327f * __expf(-0.5f * x * x);
    return {x * cumulative, cumulative + x * density};
#elif PHI == PHI_SILU
    const float gate = sigmoid(x);
    return {x * gate, gate + x * gate * (1.f - gate)};
#endif
}

