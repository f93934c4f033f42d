// 16 lanes as four registers. Included once per instruction set, inside its namespace.

struct I {
  int32x4_t v[4];
};
struct F {
  float32x4_t v[4];
};

template <class V, class Each>
static BS_INLINE V each_quarter(Each each) {
  return {{each(0), each(1), each(2), each(3)}};
}

static BS_INLINE I load_i(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return each_quarter<I>([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(bytes + 16 * i)); });
}
static BS_INLINE void store_i(void* p, const I& v) {
  auto* bytes = static_cast<uint8_t*>(p);
  for (int i = 0; i < 4; ++i) vst1q_u8(bytes + 16 * i, vreinterpretq_u8_s32(v.v[i]));
}
static BS_INLINE F bits_f(const I& v) {
  return each_quarter<F>([&](int i) { return vreinterpretq_f32_s32(v.v[i]); });
}
static BS_INLINE F load_f(const void* p) { return bits_f(load_i(p)); }
static BS_INLINE void store_f(void* p, const F& v) {
  auto* bytes = static_cast<uint8_t*>(p);
  for (int i = 0; i < 4; ++i) vst1q_u8(bytes + 16 * i, vreinterpretq_u8_f32(v.v[i]));
}
static BS_INLINE I splat_i(int32_t value) {
  return each_quarter<I>([&](int) { return vdupq_n_s32(value); });
}
static BS_INLINE F splat_f(float value) {
  return each_quarter<F>([&](int) { return vdupq_n_f32(value); });
}
static BS_INLINE I zero_i() { return splat_i(0); }
static BS_INLINE I spread_i(const void* p) {
  int32_t value;
  memcpy(&value, p, 4);
  return splat_i(value);
}
static BS_INLINE F spread_f(const void* p) { return bits_f(spread_i(p)); }
static BS_INLINE I add(const I& a, const I& b) {
  return each_quarter<I>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
static BS_INLINE I multiply(const I& a, const I& b) {
  return each_quarter<I>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
}
static BS_INLINE F add(const F& a, const F& b) {
  return each_quarter<F>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
static BS_INLINE F subtract(const F& a, const F& b) {
  return each_quarter<F>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
static BS_INLINE F multiply_add(const F& a, const F& b, const F& c) {
  return each_quarter<F>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
static BS_INLINE F to_f(const I& v) {
  return each_quarter<F>([&](int i) { return vcvtq_f32_s32(v.v[i]); });
}

// The dot product is that of signed bytes: integers come 128 lower, those of 8 bits as themselves.
inline constexpr int kBias = 128;
template <bool kWide>
static BS_INLINE I dot8(const I& t, const I& w, const I& x) {
  return each_quarter<I>([&](int i) {
    int8x16_t own = vreinterpretq_s8_s32(w.v[i]);
    if constexpr (kWide) own = veorq_s8(own, vdupq_n_s8(-128));
    return vdotq_s32(t.v[i], own, vreinterpretq_s8_s32(x.v[i]));
  });
}
static BS_INLINE I dot16(const I& t, const I& w, const I& x) {
  return each_quarter<I>([&](int i) {
    const int16x8_t a = vreinterpretq_s16_s32(w.v[i]), b = vreinterpretq_s16_s32(x.v[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    const int32x4_t high = vmull_high_s16(a, b);
    return vaddq_s32(t.v[i], vpaddq_s32(low, high));
  });
}

static BS_INLINE I widen_halves(const void* p) {
  const auto* halves = static_cast<const uint8_t*>(p);
  const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(halves));
  const uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(halves + 16));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
           vreinterpretq_s32_u32(vmovl_high_u16(low)),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
           vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}
static BS_INLINE I widen_bytes(const void* p) {
  const uint8x16_t bytes = vld1q_u8(static_cast<const uint8_t*>(p));
  uint16_t halves[kLanes];
  vst1q_u16(halves, vmovl_u8(vget_low_u8(bytes)));
  vst1q_u16(halves + 8, vmovl_high_u8(bytes));
  return widen_halves(halves);
}
static BS_INLINE I exponents(const void* p) {
  const I v = widen_bytes(p);
  return each_quarter<I>([&](int i) { return vshlq_n_s32(v.v[i], 23); });
}
static BS_INLINE F scale_f16(const uint8_t* p) {
  uint16_t halves[kLanes];
  memcpy(halves, p, sizeof(halves));
  return each_quarter<F>(
      [&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + 4 * i))); });
}
static BS_INLINE F first_of(const I& pair) {
  return bits_f(each_quarter<I>([&](int i) { return vshlq_n_s32(pair.v[i], 16); }));
}
static BS_INLINE F second_of(const I& pair) {
  const int32x4_t mask = vdupq_n_s32(int32_t(0xffff0000));
  return bits_f(each_quarter<I>([&](int i) { return vandq_s32(pair.v[i], mask); }));
}
static BS_INLINE F scale_bf16(const uint8_t* p) { return first_of(widen_halves(p)); }

// Four-bit codes by table; `high`: those in the upper halves of bytes.
static BS_INLINE I look_up_nibbles(const I& v, bool high, const uint8_t* table) {
  const uint8x16_t entries = vld1q_u8(table), mask = vdupq_n_u8(15);
  return each_quarter<I>([&](int i) {
    const uint8x16_t at = vreinterpretq_u8_s32(v.v[i]);
    return vreinterpretq_s32_u8(vqtbl1q_u8(entries, high ? vshrq_n_u8(at, 4) : vandq_u8(at, mask)));
  });
}
