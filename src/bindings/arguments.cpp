#include "bindings/arguments.hpp"

#include <limits>
#include <string>

#include "core/check.hpp"

namespace stepwell::bindings {
namespace {

DType to_dtype(DLDataType dtype) {
  if (dtype.lanes != 1) return DType::kOther;
  if (dtype.code == kDLFloat && dtype.bits == 32) return DType::kFloat32;
  if (dtype.code == kDLFloat && dtype.bits == 16) return DType::kFloat16;
  if (dtype.code == kDLBfloat && dtype.bits == 16) return DType::kBFloat16;
  if (dtype.code == kDLInt && dtype.bits == 32) return DType::kInt32;
  if (dtype.code == kDLInt && dtype.bits == 64) return DType::kInt64;
  return DType::kOther;
}

std::string dtype_text(DLDataType dtype) {
  const char* kind = "a number type";
  switch (dtype.code) {
    case kDLInt:
      kind = "int";
      break;
    case kDLUInt:
      kind = "uint";
      break;
    case kDLFloat:
      kind = "float";
      break;
    case kDLBfloat:
      kind = "bfloat";
      break;
    case kDLComplex:
      kind = "complex";
      break;
    case kDLBool:
      return "bool";
    default:
      return fmt::format("of a dtype with DLPack code {} and {} bits", dtype.code, dtype.bits);
  }
  if (dtype.lanes != 1) return fmt::format("{}{}x{}", kind, dtype.bits, dtype.lanes);
  return fmt::format("{}{}", kind, dtype.bits);
}

const char* accepted_text(Elements elements) {
  switch (elements) {
    case Elements::kFloat:
      return "float32, float16 or bfloat16";
    case Elements::kFloat32:
      return "float32";
    case Elements::kInt32:
      return "int32";
    case Elements::kInt64:
      break;
  }
  return "int64";
}

Device to_device(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
      return {DeviceType::kCpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceType::kCuda, device.device_id};
    case kDLROCM:
      return {DeviceType::kHip, device.device_id};
    default:
      return {DeviceType::kOther, device.device_id};
  }
}

const DLTensor* dl_tensor(const TVMFFIAny& argument) {
  if (argument.type_index == kTVMFFIDLTensorPtr) {
    return static_cast<const DLTensor*>(argument.v_ptr);
  }
  if (argument.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(argument.v_obj);
  return nullptr;
}

void* data_of(const DLTensor& tensor) {
  return tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
}

/// The enumerator of a code in [0, last].
template <typename Enum>
Enum to_enum(std::int64_t code, const char* name, Enum last) {
  STEPWELL_CHECK(code >= 0 && code <= static_cast<std::int64_t>(last), kValue,
                 "{} is {}; accepted codes are 0 to {}", name, code, static_cast<int>(last));
  return static_cast<Enum>(code);
}

// -1 stands for no bound.
std::int64_t to_window(std::int64_t window) {
  return window == -1 ? std::numeric_limits<std::int64_t>::max() : window;
}

void refuse_code(std::int64_t value, std::int64_t absent, const char* name, const char* mask) {
  STEPWELL_CHECK(value == absent, kValue, "{} is {}, but a {} mask does not take it", name, value,
                 mask);
}

/// Codes of `mask`; those after the first are the kinds of SequenceMask in their order.
enum class MaskCode { kDiffusion, kFull, kCausal, kWindow, kBlockCausal };

Mask read_mask(ArgumentReader& reader) {
  const MaskCode code = to_enum(reader.integer("mask"), "mask", MaskCode::kBlockCausal);
  const std::int64_t block_size = reader.integer("block_size");
  const std::int64_t order = reader.integer("order");
  const std::int64_t clean = reader.integer("clean");
  const std::int64_t noisy = reader.integer("noisy");
  const std::int64_t clean_window = reader.integer("clean_window");
  const std::int64_t num_views = reader.integer("num_views");
  const std::int64_t window_left = reader.integer("window_left");
  const std::int64_t window_right = reader.integer("window_right");
  if (code == MaskCode::kDiffusion) {
    refuse_code(window_left, -1, "window_left", "diffusion");
    refuse_code(window_right, -1, "window_right", "diffusion");
    return DiffusionMask{.block_size = block_size,
                         .order = to_enum(order, "order", Order::kCleanNoisy),
                         .clean = to_enum(clean, "clean", CleanAttention::kCausal),
                         .noisy = to_enum(noisy, "noisy", NoisyAttention::kCausal),
                         .clean_window = clean_window,
                         .num_views = num_views};
  }
  refuse_code(order, 0, "order", "one-sequence");
  refuse_code(clean, 0, "clean", "one-sequence");
  refuse_code(noisy, 0, "noisy", "one-sequence");
  refuse_code(clean_window, 0, "clean_window", "one-sequence");
  refuse_code(num_views, 1, "num_views", "one-sequence");
  SequenceMask mask{.kind = static_cast<SequenceMask::Kind>(static_cast<int>(code) - 1),
                    .block_size = block_size,
                    .window_left = to_window(window_left),
                    .window_right = to_window(window_right)};
  const bool has_blocks = code == MaskCode::kBlockCausal;
  if (!has_blocks && block_size == 0) mask.block_size = SequenceMask{}.block_size;
  return mask;
}

}  // namespace

const TVMFFIAny& ArgumentReader::next(const char* name) {
  STEPWELL_CHECK(next_ < count_, kType, "{} got {} arguments, and {} is missing", function_, count_,
                 name);
  return arguments_[next_++];
}

std::int64_t ArgumentReader::integer(const char* name) {
  const TVMFFIAny& argument = next(name);
  STEPWELL_CHECK(argument.type_index == kTVMFFIInt, kType, "{} must be an integer of 64 bits",
                 name);
  return argument.v_int64;
}

int ArgumentReader::small_integer(const char* name) {
  const std::int64_t value = integer(name);
  constexpr int kLimit = std::numeric_limits<int>::max();
  STEPWELL_CHECK(value >= -kLimit && value <= kLimit, kValue, "{} is {}; it must fit 32 bits", name,
                 value);
  return static_cast<int>(value);
}

bool ArgumentReader::boolean(const char* name) {
  const TVMFFIAny& argument = next(name);
  STEPWELL_CHECK(argument.type_index == kTVMFFIBool || argument.type_index == kTVMFFIInt, kType,
                 "{} must be a bool", name);
  return argument.v_int64 != 0;
}

double ArgumentReader::number(const char* name) {
  const std::optional<double> value = optional_number(name);
  STEPWELL_CHECK(value.has_value(), kType, "{} must be a number, not None", name);
  return *value;
}

std::optional<double> ArgumentReader::optional_number(const char* name) {
  const TVMFFIAny& argument = next(name);
  if (argument.type_index == kTVMFFINone) return std::nullopt;
  if (argument.type_index == kTVMFFIInt) return static_cast<double>(argument.v_int64);
  STEPWELL_CHECK(argument.type_index == kTVMFFIFloat, kType, "{} must be a number", name);
  return argument.v_float64;
}

std::string_view ArgumentReader::text(const char* name) {
  const TVMFFIAny& argument = next(name);
  if (argument.type_index == kTVMFFIRawStr) return argument.v_c_str;
  if (argument.type_index == kTVMFFISmallStr) {
    const TVMFFIByteArray bytes = TVMFFISmallBytesGetContentByteArray(&argument);
    return {bytes.data, bytes.size};
  }
  STEPWELL_CHECK(argument.type_index == kTVMFFIStr, kType, "{} must be a string", name);
  const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(argument.v_obj);
  return {bytes->data, bytes->size};
}

void* ArgumentReader::function(const char* name) {
  const TVMFFIAny& argument = next(name);
  STEPWELL_CHECK(argument.type_index == kTVMFFIFunction, kType, "{} must be a function", name);
  return argument.v_obj;
}

Tensor ArgumentReader::tensor(const char* name, Elements elements) {
  const TVMFFIAny& argument = next(name);
  if (argument.type_index == kTVMFFINone) return {};
  const DLTensor* source = dl_tensor(argument);
  STEPWELL_CHECK(source != nullptr, kType, "{} must be a tensor", name);
  STEPWELL_CHECK(source->ndim <= Tensor::kMaxRank, kType, "{} has rank {}; at most {} is accepted",
                 name, source->ndim, Tensor::kMaxRank);
  Tensor tensor;
  tensor.dtype = to_dtype(source->dtype);
  STEPWELL_CHECK(tensor.dtype != DType::kOther, kType, "{} is {}; it must be {}", name,
                 dtype_text(source->dtype), accepted_text(elements));
  tensor.data = data_of(*source);
  tensor.device = to_device(source->device);
  tensor.rank = source->ndim;
  std::int64_t compact = 1;  // DLPack: no strides means row-major without gaps
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.shape[i] = source->shape[i];
    tensor.stride[i] = source->strides != nullptr ? source->strides[i] : compact;
    compact *= source->shape[i];
  }
  return tensor;
}

const DLTensor& ArgumentReader::bytes(const char* name) {
  const DLTensor* source = dl_tensor(next(name));
  STEPWELL_CHECK(source != nullptr, kType, "{} must be a tensor", name);
  const DLDataType dtype = source->dtype;
  const bool is_bytes =
      (dtype.code == kDLUInt || dtype.code == kDLBool) && dtype.bits == 8 && dtype.lanes == 1;
  STEPWELL_CHECK(is_bytes, kType, "{} is {}; it must be uint8 or bool", name, dtype_text(dtype));
  STEPWELL_CHECK(to_device(source->device).type == DeviceType::kCpu, kType,
                 "{} must be in host memory", name);
  std::int64_t compact = 1;
  for (int i = source->ndim - 1; i >= 0; --i) {
    const bool contiguous =
        source->strides == nullptr || source->strides[i] == compact || source->shape[i] <= 1;
    compact *= source->shape[i];
    STEPWELL_CHECK(contiguous || compact == 0, kValue, "{} must be contiguous", name);
  }
  return *source;
}

void ArgumentReader::finish() const {
  STEPWELL_CHECK(next_ == count_, kType, "{} takes {} arguments and got {}", function_, next_,
                 count_);
}

AttentionArgs read_attention_args(ArgumentReader& reader) {
  AttentionArgs args;
  args.layout = to_enum(reader.integer("layout"), "layout", TokenLayout::kSequence);
  const bool split = args.layout == TokenLayout::kSplit;
  args.mask = read_mask(reader);
  args.q = reader.tensor(split ? "q_noisy" : "q", Elements::kFloat);
  args.k = reader.tensor(split ? "k_noisy" : "k", Elements::kFloat);
  args.v = reader.tensor(split ? "v_noisy" : "v", Elements::kFloat);
  args.q_clean = reader.tensor("q_clean", Elements::kFloat);
  args.k_clean = reader.tensor("k_clean", Elements::kFloat);
  args.v_clean = reader.tensor("v_clean", Elements::kFloat);
  args.cu_seqlens = reader.tensor(split ? "cu_seqlens_noisy" : "cu_seqlens", Elements::kInt32);
  args.cu_seqlens_clean = reader.tensor("cu_seqlens_clean", Elements::kInt32);
  args.cu_seqlens_clean_q = reader.tensor("cu_seqlens_clean_q", Elements::kInt32);
  args.cu_seqlens_kv = reader.tensor("cu_seqlens_kv", Elements::kInt32);
  args.prefix_lens = reader.tensor("prefix_lens", Elements::kInt32);
  args.seqused = reader.tensor(split ? "seqused_noisy" : "seqused", Elements::kInt32);
  args.seqused_clean = reader.tensor("seqused_clean", Elements::kInt32);
  args.seqused_kv = reader.tensor("seqused_kv", Elements::kInt32);
  args.block_ranges = reader.tensor("block_ranges", Elements::kInt32);
  args.noisy_offsets = reader.tensor("noisy_offset", Elements::kInt32);
  args.q_offsets = reader.tensor(split ? "clean_q_offset" : "q_offset", Elements::kInt32);
  args.noisy_offset = reader.integer("noisy_offset");
  args.q_offset = reader.integer(split ? "clean_q_offset" : "q_offset");
  args.max_seqlen = reader.integer("max_seqlen");
  args.softmax_scale = reader.optional_number("softmax_scale");
  args.softcap = reader.number("softcap");
  args.dropout_p = reader.number("dropout_p");
  args.dropout_state = reader.tensor("dropout_seed", Elements::kInt64);
  // The same 64 bits, signed at the boundary.
  args.dropout_seed = static_cast<std::uint64_t>(reader.integer("dropout_seed"));
  args.dropout_offset = static_cast<std::uint64_t>(reader.integer("dropout_offset"));
  args.deterministic = reader.boolean("deterministic");
  args.num_threads = reader.small_integer("num_threads");
  return args;
}

AttentionOutputs read_outputs(ArgumentReader& reader, const AttentionArgs& args) {
  const bool split = args.layout == TokenLayout::kSplit;
  AttentionOutputs outputs;
  outputs.out = reader.tensor(split ? "out_noisy" : "out", Elements::kFloat);
  outputs.lse = reader.tensor(split ? "lse_noisy" : "lse", Elements::kFloat32);
  outputs.out_clean = reader.tensor("out_clean", Elements::kFloat);
  outputs.lse_clean = reader.tensor("lse_clean", Elements::kFloat32);
  return outputs;
}

AttentionGradients read_gradients(ArgumentReader& reader, const AttentionArgs& args) {
  const bool split = args.layout == TokenLayout::kSplit;
  AttentionGradients gradients;
  gradients.out = reader.tensor(split ? "out_noisy" : "out", Elements::kFloat);
  gradients.lse = reader.tensor(split ? "lse_noisy" : "lse", Elements::kFloat32);
  gradients.dout = reader.tensor(split ? "dout_noisy" : "dout", Elements::kFloat);
  gradients.dlse = reader.tensor(split ? "dlse_noisy" : "dlse", Elements::kFloat32);
  gradients.out_clean = reader.tensor("out_clean", Elements::kFloat);
  gradients.lse_clean = reader.tensor("lse_clean", Elements::kFloat32);
  gradients.dout_clean = reader.tensor("dout_clean", Elements::kFloat);
  gradients.dlse_clean = reader.tensor("dlse_clean", Elements::kFloat32);
  gradients.dq = reader.tensor(split ? "dq_noisy" : "dq", Elements::kFloat);
  gradients.dk = reader.tensor(split ? "dk_noisy" : "dk", Elements::kFloat);
  gradients.dv = reader.tensor(split ? "dv_noisy" : "dv", Elements::kFloat);
  gradients.dq_clean = reader.tensor("dq_clean", Elements::kFloat);
  gradients.dk_clean = reader.tensor("dk_clean", Elements::kFloat);
  gradients.dv_clean = reader.tensor("dv_clean", Elements::kFloat);
  return gradients;
}

}  // namespace stepwell::bindings
