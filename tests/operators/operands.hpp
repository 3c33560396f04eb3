// A case's tensors: logical values in float64, and strided memory for a call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "operators/cases.hpp"
#include "stepwell/attention.hpp"

namespace stepwell::testing {

/// Values of a logical `[batch, rows, heads, dim]`.
struct Array {
  std::int64_t batch = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  std::vector<double> values;

  Array() = default;
  Array(std::int64_t b, std::int64_t r, std::int64_t h, std::int64_t d, double fill = 0.0)
      : batch(b), rows(r), heads(h), dim(d), values(b * r * h * d, fill) {}

  double* at(std::int64_t b, std::int64_t r, std::int64_t h) {
    return values.data() + ((b * rows + r) * heads + h) * dim;
  }
  const double* at(std::int64_t b, std::int64_t r, std::int64_t h) const {
    return const_cast<Array*>(this)->at(b, r, h);
  }
};

/// Equal, NaN included; 0 and -0 differ.
bool same_bits(const Array& a, const Array& b);

/// Index of a tensor set: the joint tensors, the noisy ones or the sequence; and the clean ones of
/// the split layout.
inline constexpr int kFirst = 0;
inline constexpr int kClean = 1;

/// Sizes of the tensor sets of a case.
struct Extents {
  std::int64_t batch = 0;       // 1 when packed
  std::int64_t rows_q[2] = {};  // kFirst, kClean
  std::int64_t rows_kv[2] = {};
};
Extents extents_of(const Case& c);

/// What a call reads.
struct Inputs {
  Array q[2], k[2], v[2], dout[2];
  Array dlse[2];  // dim 1
};

/// What forward and backward write.
struct Results {
  Array out[2], dq[2], dk[2], dv[2];
  Array lse[2];  // dim 1
};

/// Normal numbers rounded to the case's dtype; every row that is no sample's valid token is NaN.
Inputs random_inputs(const Case& c, std::uint64_t seed);

/// x as the dtype holds it.
double rounded(DType dtype, double x);

/// Memory with views in it. Every byte that no view covers, or that was not written yet, is 0xFF: a
/// NaN in each dtype.
class Block {
 public:
  /// Room for `elements` after `skip` unused ones.
  Block(DType dtype, std::int64_t elements, std::int64_t skip);

  /// A view at `offset` elements; marks its elements as covered.
  Tensor view(std::int64_t offset, int rank, const std::array<std::int64_t, 4>& shape,
              const std::array<std::int64_t, 4>& stride);
  /// Whether the bytes outside of all views are as they were.
  bool gaps_intact() const;
  void refill();

 private:
  DType dtype_;
  std::int64_t skip_;
  std::vector<std::uint16_t> memory_;  // alignment of 16-bit types is all the API asks for
  std::vector<bool> covered_;          // per element
};

/// The arguments of a case in memory of their own, and calls with them.
class Call {
 public:
  Call(const Case& c, const Inputs& inputs, bool with_lse = true);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void forward();
  /// After forward().
  void backward();
  Results results() const;
  bool gaps_intact() const;

  AttentionArgs args;
  AttentionOutputs outputs;
  AttentionGradients gradients;

 private:
  struct Shape {
    std::int64_t rows, heads, dim;
  };
  Tensor tensor(Shape shape, bool expanded = false);
  std::vector<Tensor> fused(const std::vector<Shape>& shapes);
  Tensor row_values(std::int64_t rows);
  Tensor ints(const std::vector<int>& values, bool as_table = false);
  void add_set(const Inputs& inputs, int set, bool with_queries, bool with_lse);

  Case case_;
  Extents extents_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<std::vector<int>>> ints_;
  std::int64_t dropout_state_[2] = {};
};

}  // namespace stepwell::testing
