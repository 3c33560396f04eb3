// Plan, run, and the one-call forms; dispatch to a backend.
#include <cstdint>
#include <memory>
#include <new>

#include "api/arguments.hpp"
#include "api/names.hpp"
#include "api/text.hpp"
#include "core/check.hpp"
#include "cpu/attention.hpp"
#include "cpu/parallel.hpp"

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

void check_backend(const AttentionArgs& args) {
  const Device device = args.q.device;
  STEPWELL_CHECK(device.type == DeviceType::kCpu, kNotImplemented,
                 "{} is on {}, and this build of stepwell has no {} backend; it accepts tensors on "
                 "cpu",
                 names_of(args.layout).q, to_text(device),
                 device.type == DeviceType::kHip ? "HIP" : "CUDA");
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
AttentionProblem host_problem(const AttentionArgs& args, const AttentionShape& shape,
                              int num_threads, std::vector<std::int32_t>& storage) {
  check_tensor_data(args);
  check_array_data(args);
  AttentionProblem problem = build_problem(args, shape, Addresses::kReal);
  problem.num_threads = num_threads;
  check_values(args, problem.layout);
  set_valid_clean_queries(args, problem, storage);
  return problem;
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

struct AlignedDelete {
  void operator()(std::byte* memory) const {
    ::operator delete (memory, std::align_val_t{kWorkspaceAlignment});
  }
};
using Workspace = std::unique_ptr<std::byte, AlignedDelete>;

Workspace allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = ::operator new (bytes, std::align_val_t{kWorkspaceAlignment}, std::nothrow);
  STEPWELL_CHECK(memory != nullptr, kRuntime, "no memory for a workspace of {} bytes", bytes);
  return Workspace(static_cast<std::byte*>(memory));
}

}  // namespace

std::size_t AttentionPlan::workspace_bytes() const { return impl_->workspace_bytes; }

std::string AttentionPlan::describe() const { return impl_->description; }

AttentionPlan plan_attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs) {
  auto plan = std::make_shared<AttentionPlan::Impl>(plan_inputs(args, /*backward=*/false));
  check_outputs(args, plan->shape, outputs);
  check_backend(args);
  plan->outputs = outputs;
  forget_data(plan->outputs, kOutputFields);
  AttentionProblem problem = planned_problem(*plan, args);
  set_outputs(args, outputs, Addresses::kPlanned, problem);
  plan->workspace_bytes = cpu::forward_workspace_bytes(problem);
  plan->description = cpu::describe(problem);
  return AttentionPlan(std::move(plan));
}

AttentionPlan plan_attention_backward(const AttentionArgs& args,
                                      const AttentionGradients& gradients) {
  auto plan = std::make_shared<AttentionPlan::Impl>(plan_inputs(args, /*backward=*/true));
  check_gradients(args, plan->shape, gradients);
  check_backend(args);
  plan->gradients = gradients;
  forget_data(plan->gradients, kGradientFields);
  AttentionProblem problem = planned_problem(*plan, args);
  set_gradients(args, gradients, Addresses::kPlanned, problem);
  plan->workspace_bytes = cpu::backward_workspace_bytes(problem);
  plan->description = cpu::describe(problem);
  return AttentionPlan(std::move(plan));
}

void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionOutputs& outputs,
         void* workspace) {
  const AttentionPlan::Impl& impl = plan.impl();
  check_run(impl, /*backward=*/false, args, workspace);
  check_as_planned(args, outputs, impl.outputs);
  check_data(args, outputs);
  std::vector<std::int32_t> storage;
  AttentionProblem problem = host_problem(args, impl.shape, impl.num_threads, storage);
  set_outputs(args, outputs, Addresses::kReal, problem);
  cpu::forward(problem, static_cast<std::byte*>(workspace));
}

void run(const AttentionPlan& plan, const AttentionArgs& args, const AttentionGradients& gradients,
         void* workspace) {
  const AttentionPlan::Impl& impl = plan.impl();
  check_run(impl, /*backward=*/true, args, workspace);
  check_as_planned(args, gradients, impl.gradients);
  check_data(args, gradients);
  std::vector<std::int32_t> storage;
  AttentionProblem problem = host_problem(args, impl.shape, impl.num_threads, storage);
  set_gradients(args, gradients, Addresses::kReal, problem);
  cpu::backward(problem, static_cast<std::byte*>(workspace));
}

void attention_forward(const AttentionArgs& args, const AttentionOutputs& outputs) {
  const AttentionShape shape = check_arguments(args);
  check_outputs(args, shape, outputs);
  check_backend(args);
  check_data(args, outputs);
  std::vector<std::int32_t> storage;
  AttentionProblem problem =
      host_problem(args, shape, cpu::thread_count(args.num_threads), storage);
  set_outputs(args, outputs, Addresses::kReal, problem);
  const Workspace workspace = allocate(cpu::forward_workspace_bytes(problem));
  cpu::forward(problem, workspace.get());
}

void attention_backward(const AttentionArgs& args, const AttentionGradients& gradients) {
  const AttentionShape shape = check_arguments(args);
  check_gradients(args, shape, gradients);
  check_backend(args);
  check_data(args, gradients);
  std::vector<std::int32_t> storage;
  AttentionProblem problem =
      host_problem(args, shape, cpu::thread_count(args.num_threads), storage);
  set_gradients(args, gradients, Addresses::kReal, problem);
  const Workspace workspace = allocate(cpu::backward_workspace_bytes(problem));
  cpu::backward(problem, workspace.get());
}

}  // namespace stepwell
