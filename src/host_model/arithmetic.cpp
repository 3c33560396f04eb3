// Number formats, and functions that a GPU approximates.
#include <bit>
#include <cmath>

#include "core/half.hpp"
#include "host_model/host_model.hpp"

namespace stepwell::host_model {
namespace {

constexpr u16 kNaN = 0x7fff;

float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

}  // namespace

u16 f32_to_bf16(float value) { return std::isnan(value) ? kNaN : bf16_from_float(value); }
u16 f32_to_f16(float value) { return std::isnan(value) ? kNaN : f16_from_float(value); }
float bf16_to_f32(u16 bits) { return float_from_bf16(bits); }
float f16_to_f32(u16 bits) { return float_from_f16(bits); }

float ex2(float x) { return flush(std::exp2(flush(x))); }
float lg2(float x) { return flush(std::log2(flush(x))); }
float rcp(float x) { return flush(1.0f / flush(x)); }
float max(float x, float y) { return std::fmax(x, y); }

float min_nan(float x, float y) {
  return std::isnan(x) || std::isnan(y) ? std::bit_cast<float>(0x7fffffffu) : std::fmin(x, y);
}

}  // namespace stepwell::host_model
