#include "operators/operands.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "operators/samples.hpp"
#include "reference/dtype.hpp"
#include "support/random.hpp"

namespace stepwell::testing {

bool same_bits(const Array& a, const Array& b) {
  if (a.batch != b.batch || a.rows != b.rows || a.heads != b.heads || a.dim != b.dim) return false;
  return a.values.empty() ||
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

Extents extents_of(const Case& c) {
  const auto rows = [&c](const std::vector<int>& lengths, int copies) -> std::int64_t {
    if (!c.is_packed()) return lengths.empty() ? 0 : std::int64_t{lengths[0]} * copies;
    return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) * copies + c.tail;
  };
  Extents e;
  e.batch = c.is_packed() ? 1 : c.batch();
  const int views = c.num_views();
  switch (c.layout) {
    case TokenLayout::kBatched:
    case TokenLayout::kInterleaved:
      e.rows_q[kFirst] = e.rows_kv[kFirst] = rows(c.lengths, views + 1);
      break;
    case TokenLayout::kHalves:
      e.rows_q[kFirst] = e.rows_kv[kFirst] = rows(c.lengths, 1) * (views + 1);
      break;
    case TokenLayout::kSplit:
      e.rows_q[kFirst] = e.rows_kv[kFirst] = rows(c.lengths, views);
      e.rows_q[kClean] = c.clean_queries ? rows(c.clean_query_lengths(), 1) : 0;
      e.rows_kv[kClean] = rows(c.key_lengths(), 1);
      break;
    case TokenLayout::kSequence:
      e.rows_q[kFirst] = rows(c.lengths, 1);
      e.rows_kv[kFirst] = rows(c.key_lengths(), 1);
      break;
  }
  return e;
}

double rounded(DType dtype, double x) {
  std::uint32_t bits = 0;
  reference::store(&bits, dtype, 0, x);
  return reference::load(&bits, dtype, 0);
}

Inputs random_inputs(const Case& c, std::uint64_t seed) {
  const Extents e = extents_of(c);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Random random(seed);
  Inputs inputs;
  for (const int set : {kFirst, kClean}) {
    inputs.q[set] = Array(e.batch, e.rows_q[set], c.heads_q, c.head_dim, kNan);
    inputs.dout[set] = Array(e.batch, e.rows_q[set], c.heads_q, c.head_dim_v, kNan);
    inputs.dlse[set] = Array(e.batch, e.rows_q[set], c.heads_q, 1, kNan);
    inputs.k[set] = Array(e.batch, e.rows_kv[set], c.heads_kv, c.head_dim, kNan);
    inputs.v[set] = Array(e.batch, e.rows_kv[set], c.heads_kv, c.head_dim_v, kNan);
  }
  const auto fill = [&](Array* arrays, const Place& place, double scale, DType dtype) {
    Array& array = arrays[place.set];
    for (std::int64_t h = 0; h < array.heads; ++h) {
      double* row = array.at(place.batch, place.row, h);
      for (std::int64_t d = 0; d < array.dim; ++d) row[d] = rounded(dtype, scale * random.normal());
    }
  };
  for (const SampleModel& sample : samples_of(c)) {
    for (const Place& query : sample.queries) {
      fill(inputs.q, query, c.input_scale, c.dtype);
      fill(inputs.dout, query, 1.0, c.dtype);
      fill(inputs.dlse, query, 1.0, DType::kFloat32);
    }
    for (const Place& key : sample.keys) {
      fill(inputs.k, key, c.input_scale, c.dtype);
      fill(inputs.v, key, 1.0, c.dtype);
    }
  }
  if (c.expanded_dout) {
    std::vector<double> shared(c.head_dim_v);
    for (double& x : shared) x = rounded(c.dtype, random.normal());
    for (Array& dout : inputs.dout) {
      for (std::size_t i = 0; i < dout.values.size(); ++i)
        dout.values[i] = shared[i % shared.size()];
    }
  }
  return inputs;
}

// ------------------------------------------------------------------------------------------ memory

Block::Block(DType dtype, std::int64_t elements, std::int64_t skip)
    : dtype_(dtype),
      skip_(skip),
      memory_((skip + elements) * size_of(dtype) / 2 + 8),
      covered_(skip + elements, false) {
  refill();
}

void Block::refill() { std::fill(memory_.begin(), memory_.end(), std::uint16_t{0xFFFF}); }

Tensor Block::view(std::int64_t offset, int rank, const std::array<std::int64_t, 4>& shape,
                   const std::array<std::int64_t, 4>& stride) {
  Tensor tensor;
  tensor.dtype = dtype_;
  tensor.rank = rank;
  tensor.data = reinterpret_cast<std::byte*>(memory_.data()) + (skip_ + offset) * size_of(dtype_);
  std::copy_n(shape.begin() + (4 - rank), rank, tensor.shape.begin());
  std::copy_n(stride.begin() + (4 - rank), rank, tensor.stride.begin());
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t r = 0; r < shape[1]; ++r) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        const std::int64_t first = skip_ + offset + b * stride[0] + r * stride[1] + h * stride[2];
        std::fill_n(covered_.begin() + first, shape[3], true);
      }
    }
  }
  return tensor;
}

bool Block::gaps_intact() const {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory_.data());
  const std::size_t size = size_of(dtype_);
  for (std::size_t byte = 0; byte < memory_.size() * 2; ++byte) {
    const bool covered = byte / size < covered_.size() && covered_[byte / size];
    if (!covered && bytes[byte] != 0xFF) return false;
  }
  return true;
}

namespace {

/// Batch, row, head and dim strides and extents of a tensor view of any rank; a rank that lacks the
/// batch has one entry.
struct View4 {
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::array<std::int64_t, 4> stride{0, 0, 0, 0};
};

View4 view4(const Tensor& tensor) {
  View4 view;
  for (int i = 0; i < tensor.rank; ++i) {
    view.shape[4 - tensor.rank + i] = tensor.shape[i];
    view.stride[4 - tensor.rank + i] = tensor.shape[i] > 1 ? tensor.stride[i] : 0;
  }
  return view;
}

/// lse and dlse: `[batch, heads, rows]` to rows, heads.
View4 row_values_view(const Tensor& tensor) {
  View4 view;
  const int head = tensor.rank - 2;
  view.shape = {tensor.rank == 3 ? tensor.shape[0] : 1, tensor.shape[head + 1], tensor.shape[head],
                1};
  view.stride = {tensor.rank == 3 ? tensor.stride[0] : 0, tensor.stride[head + 1],
                 tensor.stride[head], 0};
  return view;
}

template <typename Visit>
void for_each_element(const View4& view, Visit&& visit) {
  std::size_t index = 0;
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t r = 0; r < view.shape[1]; ++r) {
      for (std::int64_t h = 0; h < view.shape[2]; ++h) {
        for (std::int64_t d = 0; d < view.shape[3]; ++d) {
          visit(index++,
                b * view.stride[0] + r * view.stride[1] + h * view.stride[2] + d * view.stride[3]);
        }
      }
    }
  }
}

void write(const Array& array, const Tensor& tensor, const View4& view) {
  for_each_element(view, [&](std::size_t index, std::int64_t offset) {
    reference::store(tensor.data, tensor.dtype, offset, array.values[index]);
  });
}

Array read(const Tensor& tensor, const View4& view) {
  Array array(view.shape[0], view.shape[1], view.shape[2], view.shape[3]);
  for_each_element(view, [&](std::size_t index, std::int64_t offset) {
    array.values[index] = reference::load(tensor.data, tensor.dtype, offset);
  });
  return array;
}

std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

}  // namespace

Tensor Call::tensor(Shape shape, bool expanded) {
  const std::int64_t batch = extents_.batch;
  const int rank = case_.is_packed() ? 3 : 4;
  std::int64_t head = shape.dim;
  std::int64_t row = shape.heads * head;
  std::int64_t skip = 0;
  switch (case_.memory) {
    case Memory::kContiguous:
    case Memory::kFusedQkv:
    case Memory::kOddStrides:
      break;
    case Memory::kPaddedHeads:
      head = shape.dim + 8;
      row = shape.heads * head + 16;
      break;
    case Memory::kHeadsFirst:
      row = shape.dim;
      head = shape.rows * row;
      break;
    case Memory::kUnaligned:
      skip = 1;
      head = shape.dim + 1;
      row = shape.heads * head + 3;
      break;
  }
  std::int64_t entry = std::max(shape.rows * row, shape.heads * head);
  if (case_.memory == Memory::kPaddedHeads) entry = round_up(entry + 40, 8);
  if (case_.memory == Memory::kUnaligned) entry += 5;
  if (expanded) head = row = entry = 0;
  blocks_.push_back(std::make_unique<Block>(
      case_.dtype, expanded ? shape.dim : std::max<std::int64_t>(batch * entry, shape.dim), skip));
  Tensor result = blocks_.back()->view(0, rank, {batch, shape.rows, shape.heads, shape.dim},
                                       {entry, row, head, 1});
  if (case_.memory == Memory::kOddStrides) {
    for (int i = 0; i + 1 < rank; ++i) {
      if (result.shape[i] <= 1) result.stride[i] = 12345678901 + i;
    }
  }
  return result;
}

std::vector<Tensor> Call::fused(const std::vector<Shape>& shapes) {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  bool equal_rows = true;
  for (const Shape& shape : shapes) {
    row += shape.heads * shape.dim;
    equal_rows = equal_rows && shape.rows == shapes[0].rows;
    rows = shape.rows;
  }
  std::vector<Tensor> views;
  if (case_.memory != Memory::kFusedQkv || !equal_rows) {
    for (const Shape& shape : shapes) views.push_back(tensor(shape));
    return views;
  }
  blocks_.push_back(std::make_unique<Block>(case_.dtype, extents_.batch * rows * row, 0));
  std::int64_t offset = 0;
  for (const Shape& shape : shapes) {
    views.push_back(blocks_.back()->view(offset, case_.is_packed() ? 3 : 4,
                                         {extents_.batch, rows, shape.heads, shape.dim},
                                         {rows * row, row, shape.dim, 1}));
    offset += shape.heads * shape.dim;
  }
  return views;
}

Tensor Call::row_values(std::int64_t rows) {
  const std::int64_t heads = case_.heads_q;
  // [batch, heads, rows]; the modes with gaps store rows outermost.
  const bool transposed =
      case_.memory == Memory::kPaddedHeads || case_.memory == Memory::kUnaligned;
  const std::int64_t head = transposed ? 3 : rows;
  const std::int64_t row = transposed ? heads * 3 : 1;
  const std::int64_t entry = transposed ? rows * heads * 3 : heads * rows;
  blocks_.push_back(std::make_unique<Block>(DType::kFloat32,
                                            std::max<std::int64_t>(1, extents_.batch * entry), 0));
  const int rank = case_.is_packed() ? 2 : 3;
  Tensor tensor =
      blocks_.back()->view(0, rank + 1, {extents_.batch, heads, rows, 1}, {entry, head, row, 1});
  tensor.rank = rank;
  return tensor;
}

Tensor Call::ints(const std::vector<int>& values, bool as_table) {
  ints_.push_back(std::make_unique<std::vector<int>>(values));
  void* data = ints_.back()->data();
  if (!as_table)
    return Tensor::contiguous(data, DType::kInt32, {static_cast<std::int64_t>(values.size())});
  const auto pairs = static_cast<std::int64_t>(values.size() / 2);
  if (pairs == case_.num_blocks) return Tensor::contiguous(data, DType::kInt32, {pairs, 2});
  return Tensor::contiguous(data, DType::kInt32, {case_.batch(), case_.num_blocks, 2});
}

void Call::add_set(const Inputs& inputs, int set, bool with_queries, bool with_lse) {
  const Case& c = case_;
  const Shape q{extents_.rows_q[set], c.heads_q, c.head_dim};
  const Shape k{extents_.rows_kv[set], c.heads_kv, c.head_dim};
  const Shape v{extents_.rows_kv[set], c.heads_kv, c.head_dim_v};
  const Shape out{extents_.rows_q[set], c.heads_q, c.head_dim_v};
  const bool clean = set == kClean;
  const auto qkv = [&](Tensor& to_q, Tensor& to_k, Tensor& to_v) {
    const std::vector<Tensor> views = with_queries ? fused({q, k, v}) : fused({k, v});
    if (with_queries) to_q = views[0];
    to_k = views[views.size() - 2];
    to_v = views[views.size() - 1];
  };
  Tensor& args_q = clean ? args.q_clean : args.q;
  Tensor& args_k = clean ? args.k_clean : args.k;
  Tensor& args_v = clean ? args.v_clean : args.v;
  qkv(args_q, args_k, args_v);
  write(inputs.k[set], args_k, view4(args_k));
  write(inputs.v[set], args_v, view4(args_v));
  qkv(clean ? gradients.dq_clean : gradients.dq, clean ? gradients.dk_clean : gradients.dk,
      clean ? gradients.dv_clean : gradients.dv);
  if (!with_queries) return;
  write(inputs.q[set], args_q, view4(args_q));

  Tensor& to_out = clean ? outputs.out_clean : outputs.out;
  to_out = tensor(out);
  (clean ? gradients.out_clean : gradients.out) = to_out;
  Tensor& dout = clean ? gradients.dout_clean : gradients.dout;
  dout = tensor(out, c.expanded_dout);
  write(inputs.dout[set], dout, view4(dout));
  if (with_lse) {
    Tensor& to_lse = clean ? outputs.lse_clean : outputs.lse;
    to_lse = row_values(q.rows);
    (clean ? gradients.lse_clean : gradients.lse) = to_lse;
  }
  if (c.with_dlse) {
    Tensor& dlse = clean ? gradients.dlse_clean : gradients.dlse;
    dlse = row_values(q.rows);
    write(inputs.dlse[set], dlse, row_values_view(dlse));
  }
}

Call::Call(const Case& c, const Inputs& inputs, bool with_lse) : case_(c), extents_(extents_of(c)) {
  args.mask = c.mask;
  args.layout = c.layout;
  const bool split = c.layout == TokenLayout::kSplit;
  const bool sequence = c.layout == TokenLayout::kSequence;
  add_set(inputs, kFirst, true, with_lse);
  if (split) add_set(inputs, kClean, c.clean_queries, with_lse);

  if (c.is_packed()) {
    const auto running = [this](const std::vector<int>& lengths, int copies) {
      std::vector<int> cu_seqlens = {0};
      for (const int length : lengths) cu_seqlens.push_back(cu_seqlens.back() + copies * length);
      return ints(cu_seqlens);
    };
    const int views = c.num_views();
    const int copies = c.layout == TokenLayout::kInterleaved ? views + 1 : split ? views : 1;
    args.cu_seqlens = running(c.lengths, copies);
    if (split) {
      args.cu_seqlens_clean = running(c.key_lengths(), 1);
      if (c.clean_queries && !c.clean_q_lengths.empty())
        args.cu_seqlens_clean_q = running(c.clean_q_lengths, 1);
    }
    if (sequence && !c.clean_lengths.empty()) args.cu_seqlens_kv = running(c.clean_lengths, 1);
  }
  const auto give = [this](Tensor& field, const std::vector<int>& values) {
    if (!values.empty()) field = ints(values);
  };
  give(args.prefix_lens, c.prefix_lens);
  give(args.seqused, c.seqused);
  give(args.seqused_clean, c.seqused_clean);
  give(args.seqused_kv, c.seqused_kv);
  give(args.noisy_offsets, c.noisy_offsets);
  give(args.q_offsets, c.q_offsets);
  if (!c.block_ranges.empty()) args.block_ranges = ints(c.block_ranges, true);
  args.noisy_offset = c.noisy_offset;
  args.q_offset = c.q_offset;

  args.softmax_scale = c.softmax_scale;
  args.softcap = c.softcap;
  args.dropout_p = c.dropout_p;
  args.deterministic = c.deterministic;
  if (c.dropout_tensor) {
    dropout_state_[0] = static_cast<std::int64_t>(c.dropout_seed);
    dropout_state_[1] = static_cast<std::int64_t>(c.dropout_offset);
    args.dropout_state = Tensor::contiguous(dropout_state_, DType::kInt64, {2});
  } else {
    args.dropout_seed = c.dropout_seed;
    args.dropout_offset = c.dropout_offset;
  }
}

void Call::forward() { attention_forward(args, outputs); }

void Call::backward() { attention_backward(args, gradients); }

Results Call::results() const {
  const auto get = [](const Tensor& tensor) {
    return tensor.given() ? read(tensor, view4(tensor)) : Array();
  };
  const auto get_values = [](const Tensor& tensor) {
    return tensor.given() ? read(tensor, row_values_view(tensor)) : Array();
  };
  Results r;
  r.out[kFirst] = get(outputs.out);
  r.out[kClean] = get(outputs.out_clean);
  r.lse[kFirst] = get_values(outputs.lse);
  r.lse[kClean] = get_values(outputs.lse_clean);
  r.dq[kFirst] = get(gradients.dq);
  r.dq[kClean] = get(gradients.dq_clean);
  r.dk[kFirst] = get(gradients.dk);
  r.dk[kClean] = get(gradients.dk_clean);
  r.dv[kFirst] = get(gradients.dv);
  r.dv[kClean] = get(gradients.dv_clean);
  return r;
}

bool Call::gaps_intact() const {
  return std::all_of(blocks_.begin(), blocks_.end(),
                     [](const auto& block) { return block->gaps_intact(); });
}

}  // namespace stepwell::testing
