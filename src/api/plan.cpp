// Plan, run, and the one-call forms; dispatch to a backend.
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"
#include "cpu/attention.hpp"
#include "cpu/parallel.hpp"
#include "cuda/backend.hpp"
#include "cuda/gpu.hpp"
#include "runtime/device.hpp"

namespace stepwell {

struct AttentionPlan::Impl {
  bool backward = false;
  AttentionArgs args;  // shapes, strides, dtypes; the pointers are not kept
  AttentionOutputs outputs;
  AttentionGradients gradients;
  AttentionShape shape;
  int num_threads = 0;  // resolved: the workspace has a piece for each
  std::size_t workspace_bytes = 0;
  std::string description;
};

namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

bool on_cuda(const AttentionArgs& args) { return args.q.device.type == DeviceType::kCuda; }

template <typename Results>
void check_backend(const AttentionArgs& args, const Results& results) {
  STEPWELL_CHECK(args.q.device.type != DeviceType::kHip, kNotImplemented,
                 "{} is on {}, and this build of stepwell has no HIP backend; it accepts tensors "
                 "on cpu and cuda",
                 names_of(args.layout).q, to_text(args.q.device));
  if (!on_cuda(args)) return;
  check_cuda(args, results);
}

template <typename Struct, std::size_t N>
void forget_data(Struct& tensors, const Field<Struct> (&fields)[N]) {
  for (const Field<Struct>& field : fields) (tensors.*field.tensor).data = nullptr;
}

AttentionPlan::Impl plan_inputs(const AttentionArgs& args, bool backward) {
  AttentionPlan::Impl plan;
  plan.backward = backward;
  plan.args = args;
  plan.shape = check_arguments(args);
  plan.num_threads = cpu::thread_count(args.num_threads);
  forget_data(plan.args, kTensorFields);
  forget_data(plan.args, kArrayFields);
  return plan;
}

AttentionProblem planned_problem(const AttentionPlan::Impl& plan, const AttentionArgs& args) {
  AttentionProblem problem = build_problem(args, plan.shape, Addresses::kPlanned);
  problem.num_threads = plan.num_threads;
  return problem;
}

/// What run() and the one-call forms share once shapes are known to be good. OpenMP's default may
/// change at any time, so `num_threads` is the number that the workspace is for.
template <typename Results>
AttentionProblem checked_problem(const AttentionArgs& args, const AttentionShape& shape,
                                 const Results& results, int num_threads) {
  check_data(args, results);
  check_tensor_data(args);
  check_array_data(args);
  if (on_cuda(args)) check_cuda_data(args, results);
  AttentionProblem problem = build_problem(args, shape, Addresses::kReal);
  problem.num_threads = num_threads;
  if (!on_cuda(args)) {
    check_values(args, problem.layout);
  } else if (debug_sync()) {
    check_cuda_values(args, shape);
  }
  return problem;
}

void launch_forward(const AttentionArgs& args, const AttentionProblem& problem, void* workspace) {
  if (on_cuda(args)) {
    cuda::GpuLauncher launcher(args.q.device.index, args.stream);
    cuda::forward(problem, launcher);
    if (debug_sync()) runtime::synchronize(args.q.device.index, args.stream);
  } else {
    cpu::forward(problem, static_cast<std::byte*>(workspace));
  }
}

void launch_backward(const AttentionArgs& args, const AttentionProblem& problem, void* workspace) {
  if (on_cuda(args)) {
    cuda::GpuLauncher launcher(args.q.device.index, args.stream);
    launcher.expect(cuda::backward_kernels, problem);
    cuda::backward(problem, static_cast<std::byte*>(workspace), launcher);
    if (debug_sync()) runtime::synchronize(args.q.device.index, args.stream);
  } else {
    cpu::backward(problem, static_cast<std::byte*>(workspace));
  }
}

std::size_t forward_bytes(const AttentionArgs& args, const AttentionProblem& problem) {
  return on_cuda(args) ? cuda::forward_workspace_bytes(problem)
                       : cpu::forward_workspace_bytes(problem);
}

std::size_t backward_bytes(const AttentionArgs& args, const AttentionProblem& problem) {
  if (!on_cuda(args)) return cpu::backward_workspace_bytes(problem);
  const cuda::GpuLauncher launcher(args.q.device.index, args.stream);
  return cuda::backward_workspace_bytes(problem, launcher.limits());
}

std::string prepare_backend(const AttentionArgs& args, const AttentionProblem& problem,
                            bool backward) {
  if (!on_cuda(args)) return cpu::describe(problem);
  const cuda::GpuLauncher launcher(args.q.device.index, args.stream);
  const cuda::DeviceLimits limits = launcher.limits();
  launcher.load(backward ? cuda::backward_kernels(problem, limits)
                         : cuda::forward_kernels(problem, limits));
  return backward ? cuda::describe_backward(problem, limits)
                  : cuda::describe_forward(problem, limits);
}

void check_run(const AttentionPlan::Impl& plan, bool backward, const AttentionArgs& args,
               void* workspace) {
  STEPWELL_CHECK(plan.backward == backward, kValue,
                 "plan is for the {} pass, and was run on the tensors of the {} pass",
                 plan.backward ? "backward" : "forward", backward ? "backward" : "forward");
  check_as_planned(args, plan.args);
  check_numbers(args);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  STEPWELL_CHECK(plan.workspace_bytes == 0 || workspace != nullptr, kValue,
                 "workspace is null; the plan needs {} bytes", plan.workspace_bytes);
  STEPWELL_CHECK(address % kWorkspaceAlignment == 0, kValue, "workspace is not aligned to {} bytes",
                 kWorkspaceAlignment);
}

/// Memory of one call.
class Workspace {
 public:
  Workspace(const AttentionArgs& args, std::size_t bytes) : args_(args) {
    if (bytes == 0) return;
    const Device device = args.q.device;
    owned_ = args.allocator.allocate == nullptr;
    if (!owned_) {
      memory_ = args.allocator.allocate(args.allocator.context, bytes, device);
    } else if (on_cuda(args)) {
      memory_ = runtime::allocate_async(device.index, bytes, args.stream);
    } else {
      memory_ = ::operator new (bytes, std::align_val_t{kWorkspaceAlignment}, std::nothrow);
    }
    STEPWELL_CHECK(memory_ != nullptr, kRuntime, "no memory on {} for a workspace of {} bytes",
                   to_text(device), bytes);
  }
  ~Workspace() {
    if (!owned_ || memory_ == nullptr) return;
    if (on_cuda(args_)) {
      runtime::free_async(args_.q.device.index, memory_, args_.stream);
    } else {
      ::operator delete (memory_, std::align_val_t{kWorkspaceAlignment});
    }
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* memory() const { return memory_; }

 private:
  const AttentionArgs& args_;
  void* memory_ = nullptr;
  bool owned_ = false;
};

}  // namespace

std::size_t AttentionPlan::workspace_bytes() const { return impl_->workspace_bytes; }

std::string AttentionPlan::describe() const { return impl_->description; }

AttentionPlan plan_attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs) {
  auto plan = std::make_shared<AttentionPlan::Impl>(plan_inputs(args, /*backward=*/false));
  check_outputs(args, plan->shape, outputs);
  check_backend(args, outputs);
  plan->outputs = outputs;
  forget_data(plan->outputs, kOutputFields);
  AttentionProblem problem = planned_problem(*plan, args);
  set_outputs(args, outputs, Addresses::kPlanned, problem);
  plan->workspace_bytes = forward_bytes(args, problem);
  plan->description = prepare_backend(args, problem, /*backward=*/false);
  return AttentionPlan(std::move(plan));
}

AttentionPlan plan_attention_backward(const AttentionArgs& args,
                                      const AttentionGradients& gradients) {
  auto plan = std::make_shared<AttentionPlan::Impl>(plan_inputs(args, /*backward=*/true));
  check_gradients(args, plan->shape, gradients);
  check_backend(args, gradients);
  plan->gradients = gradients;
  forget_data(plan->gradients, kGradientFields);
  AttentionProblem problem = planned_problem(*plan, args);
  set_gradients(args, gradients, Addresses::kPlanned, problem);
  plan->workspace_bytes = backward_bytes(args, problem);
  plan->description = prepare_backend(args, problem, /*backward=*/true);
  return AttentionPlan(std::move(plan));
}

void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionOutputs& outputs,
         void* workspace) {
  const AttentionPlan::Impl& impl = plan.impl();
  check_run(impl, /*backward=*/false, args, workspace);
  check_as_planned(args, outputs, impl.outputs);
  AttentionProblem problem = checked_problem(args, impl.shape, outputs, impl.num_threads);
  set_outputs(args, outputs, Addresses::kReal, problem);
  launch_forward(args, problem, workspace);
}

void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionGradients& gradients,
         void* workspace) {
  const AttentionPlan::Impl& impl = plan.impl();
  check_run(impl, /*backward=*/true, args, workspace);
  check_as_planned(args, gradients, impl.gradients);
  AttentionProblem problem = checked_problem(args, impl.shape, gradients, impl.num_threads);
  set_gradients(args, gradients, Addresses::kReal, problem);
  launch_backward(args, problem, workspace);
}

void attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs) {
  const AttentionShape shape = check_arguments(args);
  check_outputs(args, shape, outputs);
  check_backend(args, outputs);
  AttentionProblem problem =
      checked_problem(args, shape, outputs, cpu::thread_count(args.num_threads));
  set_outputs(args, outputs, Addresses::kReal, problem);
  const Workspace workspace(args, forward_bytes(args, problem));
  launch_forward(args, problem, workspace.memory());
}

void attention_backward(const AttentionArgs& args, const AttentionGradients& gradients) {
  const AttentionShape shape = check_arguments(args);
  check_gradients(args, shape, gradients);
  check_backend(args, gradients);
  AttentionProblem problem =
      checked_problem(args, shape, gradients, cpu::thread_count(args.num_threads));
  set_gradients(args, gradients, Addresses::kReal, problem);
  const Workspace workspace(args, backward_bytes(args, problem));
  launch_backward(args, problem, workspace.memory());
}

}  // namespace stepwell
