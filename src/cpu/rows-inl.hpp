// Moving rows between tensors of any dtype and stride and contiguous float tiles.

#if defined(STEPWELL_CPU_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef STEPWELL_CPU_ROWS_INL_HPP
#undef STEPWELL_CPU_ROWS_INL_HPP
#else
#define STEPWELL_CPU_ROWS_INL_HPP
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/half.hpp"
#include "core/problem.hpp"
#include "cpu/gemm-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace stepwell::cpu::HWY_NAMESPACE {

/// Head dims are multiples of 8, so rows are converted in groups of (at most) eight lanes.
using OctetTag = hn::CappedTag<float, 8>;

// Hardware float16 conversions round to nearest even; the emulated ones of other targets do not.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr bool kFastFloat16 = true;
#else
inline constexpr bool kFastFloat16 = false;
#endif

/// dst[i] = src[i] * scale for i in [0, dim).
inline void load_row(const void* src, DType dtype, std::size_t dim, float scale, float* dst) {
  const OctetTag d;
  const hn::Rebind<std::uint16_t, OctetTag> d16;
  const hn::RebindToUnsigned<OctetTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  if (dtype == DType::kFloat32) {
    const float* from = static_cast<const float*>(src);
    for (std::size_t i = 0; i < dim; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), factor), d, dst + i);
    }
    return;
  }
  const std::uint16_t* from = static_cast<const std::uint16_t*>(src);
  if (dtype == DType::kBFloat16) {
    for (std::size_t i = 0; i < dim; i += lanes) {
      const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from + i)));
      hn::StoreU(hn::Mul(hn::BitCast(d, bits), factor), d, dst + i);
    }
  } else if (kFastFloat16) {
    const hn::Rebind<hwy::float16_t, OctetTag> dh;
    for (std::size_t i = 0; i < dim; i += lanes) {
      const auto halves = hn::BitCast(dh, hn::LoadU(d16, from + i));
      hn::StoreU(hn::Mul(hn::PromoteTo(d, halves), factor), d, dst + i);
    }
  } else {
    for (std::size_t i = 0; i < dim; ++i) dst[i] = float_from_f16(from[i]) * scale;
  }
}

/// dst[i] = src[i] * scale, rounded to nearest even.
inline void store_row(const float* src, std::size_t dim, float scale, DType dtype, void* dst) {
  const OctetTag d;
  const hn::Rebind<std::uint16_t, OctetTag> d16;
  const hn::RebindToUnsigned<OctetTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  if (dtype == DType::kFloat32) {
    float* to = static_cast<float*>(dst);
    for (std::size_t i = 0; i < dim; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, src + i), factor), d, to + i);
    }
    return;
  }
  std::uint16_t* to = static_cast<std::uint16_t*>(dst);
  if (dtype == DType::kBFloat16) {
    for (std::size_t i = 0; i < dim; i += lanes) {
      const auto value = hn::Mul(hn::LoadU(d, src + i), factor);
      const auto bits = hn::BitCast(du, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
      const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
      const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
      const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
      const hn::RebindToSigned<OctetTag> di;
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(kept))), d16, to + i);
    }
  } else if (kFastFloat16) {
    const hn::Rebind<hwy::float16_t, OctetTag> dh;
    for (std::size_t i = 0; i < dim; i += lanes) {
      const auto halves = hn::DemoteTo(dh, hn::Mul(hn::LoadU(d, src + i), factor));
      hn::StoreU(hn::BitCast(d16, halves), d16, to + i);
    }
  } else {
    for (std::size_t i = 0; i < dim; ++i) to[i] = f16_from_float(src[i] * scale);
  }
}

inline const void* row_at(const Rows& rows, DType dtype, std::int64_t batch, std::int64_t row,
                          std::int64_t head) {
  return static_cast<const std::byte*>(rows.data) + rows.offset(batch, row, head) * size_of(dtype);
}

inline void* mutable_row_at(const Rows& rows, DType dtype, std::int64_t batch, std::int64_t row,
                            std::int64_t head) {
  return static_cast<std::byte*>(rows.data) + rows.offset(batch, row, head) * size_of(dtype);
}

/// One head of consecutive rows of a tensor.
struct RowSpan {
  Rows rows;
  DType dtype;
  std::int64_t batch;
  std::int64_t first;
  std::int64_t head;

  const void* at(std::int64_t i) const { return row_at(rows, dtype, batch, first + i, head); }
  void* mutable_at(std::int64_t i) const {
    return mutable_row_at(rows, dtype, batch, first + i, head);
  }
};

/// tile[i][0, dim) = row begin + i, with zeros in [dim, stride).
inline void load_tile(const RowSpan& span, std::int64_t begin, std::size_t count, std::size_t dim,
                      float* tile, std::size_t stride) {
  for (std::size_t i = 0; i < count; ++i) {
    load_row(span.at(begin + static_cast<std::int64_t>(i)), span.dtype, dim, 1.0f,
             tile + i * stride);
    if (stride > dim) std::memset(tile + i * stride + dim, 0, (stride - dim) * sizeof(float));
  }
}

/// to[c][i] = from[i][c] for i in [0, rows), c in [0, columns), both multiples of 4.
inline void transpose(const float* HWY_RESTRICT from, std::size_t from_stride, std::size_t rows,
                      std::size_t columns, float* HWY_RESTRICT to, std::size_t to_stride) {
  for (std::size_t i = 0; i < rows; i += 4) {
    const hn::CappedTag<float, 4> d;
    const float* a = from + i * from_stride;
    for (std::size_t c = 0; c < columns; c += 4) {
      float block[16];
      if constexpr (hn::MaxLanes(hn::CappedTag<float, 4>()) == 4) {
        hn::StoreInterleaved4(hn::LoadU(d, a + c), hn::LoadU(d, a + from_stride + c),
                              hn::LoadU(d, a + 2 * from_stride + c),
                              hn::LoadU(d, a + 3 * from_stride + c), d, block);
      } else {
        for (int r = 0; r < 4; ++r) {
          for (int k = 0; k < 4; ++k) block[k * 4 + r] = a[r * from_stride + c + k];
        }
      }
      for (int k = 0; k < 4; ++k) {
        __builtin_memcpy(to + (c + k) * to_stride + i, block + k * 4, 4 * sizeof(float));
      }
    }
  }
}

}  // namespace stepwell::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
