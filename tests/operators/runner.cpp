#include "operators/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>

#include "api/arguments.hpp"
#include "cuda/backend.hpp"
#include "host_model/kernel_list.hpp"
#include "host_model/launcher.hpp"
#include "operators/mirror.hpp"
#include "runtime/device.hpp"

namespace stepwell::testing {
namespace {

constexpr std::size_t kAlignment = 64;

class CpuRunner final : public Runner {
 public:
  bool takes(const Case&) const override { return true; }
  void forward(const Case&, Call& call) override { attention_forward(call.args, call.outputs); }
  void backward(const Case&, Call& call) override { attention_backward(call.args, call.gradients); }
};

/// Runs calls on copies of their tensors in the device's memory.
class CudaRunner : public Runner {
 public:
  double term_ulps(const Case& c) const override { return is_f32(c) ? 0.0 : 1.0; }
  bool takes(const Case&) const override { return true; }
  std::vector<DType> probed_dtypes() const override { return {DType::kBFloat16, DType::kFloat32}; }

  std::string refusal(const Case& c) const override {
    return c.memory == Memory::kUnaligned && has_row(c) ? "multiple" : "";
  }
  bool has_deterministic_kernels() const override { return true; }
  bool bounds_probabilities(const Case& c) const override { return !is_f32(c); }
  Case nearest(Case c) const override {
    if (c.memory == Memory::kUnaligned) c.memory = Memory::kPaddedHeads;
    return c;
  }

  void forward(const Case& c, Call& call) override {
    on_device(
        call.args, call.outputs,
        [&](const AttentionArgs& args, const AttentionOutputs& outputs) { run(c, args, outputs); });
  }
  void backward(const Case& c, Call& call) override {
    on_device(call.args, call.gradients,
              [&](const AttentionArgs& args, const AttentionGradients& gradients) {
                run(c, args, gradients);
              });
  }

 protected:
  explicit CudaRunner(std::unique_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
  virtual void run(const Case& c, const AttentionArgs& args, const AttentionOutputs& outputs) = 0;
  virtual void run(const Case& c, const AttentionArgs& args,
                   const AttentionGradients& gradients) = 0;
  DeviceMemory& memory() { return *memory_; }
  static bool is_f32(const Case& c) { return c.dtype == DType::kFloat32; }
  /// Of the call at hand.
  const std::vector<host_model::GlobalRange>& ranges() const { return ranges_; }

 private:
  static bool has_row(const Case& c) {
    const Extents e = extents_of(c);
    return e.batch > 0 &&
           std::max({e.rows_q[kFirst], e.rows_q[kClean], e.rows_kv[kFirst], e.rows_kv[kClean]}) > 0;
  }

  template <typename Results, typename Body>
  void on_device(AttentionArgs args, Results results, Body&& body) {
    std::vector<Tensor*> tensors = tensors_of(args);
    const std::vector<Tensor*> more = tensors_of(results);
    tensors.insert(tensors.end(), more.begin(), more.end());
    Mirror mirror(*memory_, {DeviceType::kCuda, 0}, tensors);
    ranges_.clear();
    mirror.for_each_piece([this](const std::byte* begin, std::size_t bytes) {
      ranges_.push_back({begin, bytes});
    });
    body(args, results);
    mirror.copy_back();
  }

  std::unique_ptr<DeviceMemory> memory_;
  std::vector<host_model::GlobalRange> ranges_;
};

// -------------------------------------------------------------------------------------------- GPU

class GpuMemory final : public DeviceMemory {
 public:
  std::byte* allocate(std::size_t bytes) override {
    return static_cast<std::byte*>(runtime::allocate_device(0, bytes));
  }
  void free(std::byte* memory) override { runtime::free_device(0, memory); }
  void copy_in(std::byte* to, const std::byte* from, std::size_t bytes) override {
    runtime::copy_to_device(0, to, from, bytes, nullptr);
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) override {
    runtime::synchronize(0, nullptr);
    runtime::copy_to_host(0, to, from, bytes, nullptr);
    runtime::synchronize(0, nullptr);
  }
};

class GpuRunner final : public CudaRunner {
 public:
  GpuRunner() : CudaRunner(std::make_unique<GpuMemory>()) {}

  // CTAs of the 16-bit kernels add to dq in the order in which they come.
  bool same_dq_bits(const Case& c) const override { return c.deterministic || is_f32(c); }

 private:
  void run(const Case&, const AttentionArgs& args, const AttentionOutputs& outputs) override {
    attention_forward(args, outputs);
  }
  void run(const Case&, const AttentionArgs& args, const AttentionGradients& gradients) override {
    attention_backward(args, gradients);
  }
};

// ------------------------------------------------------------------------------------- host model

/// Host memory that is no larger than asked for, so that AddressSanitizer sees what lies past its
/// end; NaN at first.
class HostMemory final : public DeviceMemory {
 public:
  std::byte* allocate(std::size_t bytes) override {
    auto* memory = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}));
    std::memset(memory, 0xff, bytes);
    return memory;
  }
  void free(std::byte* memory) override {
    ::operator delete (memory, std::align_val_t{kAlignment});
  }
  void copy_in(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
};

using host_model::Delivery;
using host_model::Options;
using host_model::Schedule;

class ModelRunner final : public CudaRunner {
 public:
  ModelRunner(const cuda::DeviceLimits& limits, const RunnerOptions& options)
      : CudaRunner(std::make_unique<HostMemory>()),
        mode_(options.mode),
        fixed_(fixed_options(options.mode)),
        launcher_(limits, options.kernels) {}

  bool takes(const Case& c) const override {
    return CudaRunner::takes(c) &&
           is_modelled({c.head_dim, c.head_dim_v, element_of(c), c.softcap > 0.0, c.dropout_p > 0.0,
                        c.deterministic},
                       launcher_.limits());
  }
  Case nearest(Case c) const override {
    c = CudaRunner::nearest(std::move(c));
    if (!takes(c)) c.deterministic = false;
    if (!takes(c)) c.head_dim = std::min(c.head_dim, 64);
    if (!takes(c)) c.head_dim_v = std::min(c.head_dim_v, 64);
    if (!takes(c)) {
      c.softcap = c.dropout_p = 0.0;
      c.dropout_tensor = false;
    }
    return c;
  }
  std::size_t probe_step() const override { return 20; }

 private:
  std::uint64_t usual_random_cases() const override { return 60; }

  static cuda::Element element_of(const Case& c) {
    return is_f32(c)                     ? cuda::Element::kFloat32
           : c.dtype == DType::kBFloat16 ? cuda::Element::kBFloat16
                                         : cuda::Element::kFloat16;
  }

  /// Of a mode that is the same for all cases.
  static std::optional<Options> fixed_options(const std::string& mode) {
    if (mode == "mixed" || mode == "plain") return {};
    if (mode == "checked") return Options{.check_races = true};
    for (const auto& [schedule_name, schedule] : {std::pair{"forward", Schedule::kForward},
                                                  {"reverse", Schedule::kReverse},
                                                  {"random", Schedule::kRandom}}) {
      for (const auto& [delivery_name, delivery] : {std::pair{"late", Delivery::kLate},
                                                    {"early", Delivery::kEarly},
                                                    {"random", Delivery::kRandom}}) {
        for (const bool checked : {false, true}) {
          const std::string name =
              fmt::format("{}-{}{}", schedule_name, delivery_name, checked ? "-checked" : "");
          if (mode == name) {
            return Options{.schedule = schedule, .delivery = delivery, .check_races = checked};
          }
        }
      }
    }
    throw std::invalid_argument(fmt::format("--mode={} is none of runner.hpp's", mode));
  }

  Options options_for(const Case& c) const {
    if (fixed_) return *fixed_;
    if (mode_ == "mixed" && c.dtype == DType::kBFloat16) return {.check_races = true};
    const Options kPlain[] = {
        {.schedule = Schedule::kReverse, .delivery = Delivery::kLate},
        {.schedule = Schedule::kRandom, .delivery = Delivery::kLate},
        {.schedule = Schedule::kForward, .delivery = Delivery::kEarly},
        {.schedule = Schedule::kReverse, .delivery = Delivery::kEarly},
        {.schedule = Schedule::kRandom, .delivery = Delivery::kRandom},
    };
    unsigned sum = 0;
    for (const char letter : c.name) sum = sum * 31 + static_cast<unsigned char>(letter);
    if (mode_ == "mixed" && is_f32(c) && sum % 2 == 0) return {.check_races = true};
    Options options = kPlain[sum % std::size(kPlain)];
    options.seed = sum;
    return options;
  }

  void set_options(const Case& c, std::vector<host_model::GlobalRange> ranges) {
    Options options = options_for(c);
    options.global = std::move(ranges);
    launcher_.set_options(options);
  }

  // As attention_forward and attention_backward do on a GPU.
  template <typename Results>
  AttentionProblem problem(const AttentionArgs& args, const Results& results) const {
    constexpr bool kBackward = std::is_same_v<Results, AttentionGradients>;
    const AttentionShape shape = check_arguments(args);
    if constexpr (kBackward) {
      check_gradients(args, shape, results);
    } else {
      check_outputs(args, shape, results);
    }
    check_cuda(args, results);
    check_data(args, results);
    check_tensor_data(args);
    check_array_data(args);
    check_cuda_data(args, results);
    AttentionProblem problem = build_problem(args, shape, Addresses::kReal);
    if constexpr (kBackward) {
      set_gradients(args, results, Addresses::kReal, problem);
    } else {
      set_outputs(args, results, Addresses::kReal, problem);
    }
    return problem;
  }

  void run(const Case& c, const AttentionArgs& args, const AttentionOutputs& outputs) override {
    set_options(c, ranges());
    cuda::forward(problem(args, outputs), launcher_);
  }
  void run(const Case& c, const AttentionArgs& args, const AttentionGradients& gradients) override {
    const AttentionProblem backward = problem(args, gradients);
    const auto free = [this](std::byte* workspace) { memory().free(workspace); };
    const std::size_t bytes = cuda::backward_workspace_bytes(backward, launcher_.limits());
    const std::unique_ptr<std::byte, decltype(free)> workspace(memory().allocate(bytes), free);
    std::vector<host_model::GlobalRange> ranges = this->ranges();
    ranges.push_back({workspace.get(), bytes});
    set_options(c, std::move(ranges));
    cuda::backward(backward, workspace.get(), launcher_);
  }

  std::string mode_;
  std::optional<Options> fixed_;
  ModelLauncher launcher_;
};

std::unique_ptr<Runner> runner_of(const RunnerOptions& options) {
  const std::string& device = options.device;
  if (device == "cpu") return std::make_unique<CpuRunner>();
  if (device == "cuda") return std::make_unique<GpuRunner>();
  if (device == "cuda-model") {
    return std::make_unique<ModelRunner>(cuda::limits_of(9, 0), options);
  }
  if (device == "cuda-model:mma") {
    cuda::DeviceLimits limits = cuda::limits_of(9, 0);
    limits.warpgroups = false;
    return std::make_unique<ModelRunner>(limits, options);
  }
  if (device == "cuda-model:8.6") {
    return std::make_unique<ModelRunner>(cuda::limits_of(8, 6), options);
  }
  throw std::invalid_argument(fmt::format(
      "--device={}; accepted: cpu, cuda, cuda-model, cuda-model:mma, cuda-model:8.6", device));
}

}  // namespace

std::unique_ptr<Runner> make_runner(const RunnerOptions& options) {
  std::unique_ptr<Runner> runner = runner_of(options);
  if (const std::string& text = options.random_cases; !text.empty()) {
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc{} || end != text.data() + text.size() || count == 0) {
      throw std::invalid_argument(
          fmt::format("--random-cases={}; accepted: a whole number from 1 on", text));
    }
    runner->set_random_cases(count);
  }
  return runner;
}

}  // namespace stepwell::testing
