// Who runs a case: the CPU backend, a GPU, or the CUDA backend on the host model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operators/cases.hpp"
#include "operators/operands.hpp"

namespace stepwell::testing {

class Runner {
 public:
  virtual ~Runner() = default;

  /// Whether it has the case's dtype and kernels.
  virtual bool takes(const Case& c) const = 0;
  /// Part of the error, where the backend refuses the case by name; "": it does not.
  virtual std::string refusal(const Case&) const { return ""; }
  /// Whether `deterministic` takes other kernels.
  virtual bool has_deterministic_kernels() const { return false; }
  /// Whether P of the backward pass is at most 1, however large the scores are.
  virtual bool bounds_probabilities(const Case&) const { return false; }
  /// The case, or one like it that the runner takes.
  virtual Case nearest(Case c) const { return c; }
  /// float32 ulps of the largest sum of absolute terms that a result may be off by, beside twice
  /// the plain error: of kernels whose backward starts from a rounded lse and out.
  virtual double term_ulps(const Case&) const { return 0.0; }
  /// Whether a call gives the same bits of dq each time.
  virtual bool same_dq_bits(const Case&) const { return true; }
  /// Whose kernels are probed with many calls: a dtype of each kind of kernel.
  virtual std::vector<DType> probed_dtypes() const { return {DType::kFloat32}; }
  /// How many random cases it has the time for; RunnerOptions has another number for a longer look.
  std::uint64_t random_cases() const { return random_cases_.value_or(usual_random_cases()); }
  void set_random_cases(std::uint64_t count) { random_cases_ = count; }
  /// It has the time for one in so many of the cases that are probed with many calls each.
  virtual std::size_t probe_step() const { return 1; }

  virtual void forward(const Case& c, Call& call) = 0;
  virtual void backward(const Case& c, Call& call) = 0;

 private:
  virtual std::uint64_t usual_random_cases() const { return 400; }

  std::optional<std::uint64_t> random_cases_;
};

struct RunnerOptions {
  /// "cpu"; "cuda", which is GPU 0; "cuda-model"; "cuda-model:mma", the same without the kernels
  /// for sm_90a; or "cuda-model:8.6" for another compute capability than 9.0.
  std::string device = "cpu";
  /// Of the host model:
  ///   checked  race check, late copies, warps in order
  ///   plain    no race check; reversed and random orders, early and late copies in turn
  ///   mixed    bf16 cases checked, f16 cases plain, f32 cases one or the other
  ///   SCHEDULE-DELIVERY or SCHEDULE-DELIVERY-checked, such as reverse-late
  std::string mode = "mixed";
  /// Of the host model: a library with other kernels (planted_bugs.py).
  std::string kernels;
  /// A number; "": as many as the runner has the time for.
  std::string random_cases;
};

std::unique_ptr<Runner> make_runner(const RunnerOptions& options);

/// Of this run of the tests, from the command line (main.cpp).
Runner& test_runner();

}  // namespace stepwell::testing
