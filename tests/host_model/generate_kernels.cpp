// Writes kernels_0.cpp ... and registry.cpp: the texts that a GPU's compiler gets (spec_of), one
// name for each.
//
//   generate_kernels FOLDER PARTS [FAMILY]
//
// With a FAMILY (forward, forward_sm90, forward_walk_sm90, backward, backward_sm90, deterministic
// or f32): of a few kernels of that family only, for planted bugs, with an entry point for
// --kernels of the operator table.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "host_model/kernel_list.hpp"

namespace stepwell::testing {
namespace {

const char* params_of(const cuda::AttentionKernel& kernel) {
  if (std::holds_alternative<cuda::ForwardKernel>(kernel)) return "ForwardParams";
  if (std::holds_alternative<cuda::ForwardSm90Kernel>(kernel)) return "ForwardSm90Params";
  if (std::holds_alternative<cuda::ForwardWalkSm90Kernel>(kernel)) return "ForwardWalkSm90Params";
  if (std::holds_alternative<cuda::ForwardF32Kernel>(kernel)) return "ForwardParamsF32";
  if (std::holds_alternative<cuda::BackwardSm90Kernel>(kernel) ||
      std::holds_alternative<cuda::BackwardRowsSm90Kernel>(kernel)) {
    return "BackwardSm90Params";
  }
  return cuda::is_f32(kernel) ? "BackwardParamsF32" : "BackwardParams";
}

std::string key_text(const cuda::AttentionKernel& kernel) {
  return fmt::format("{{{{{}}}}}", fmt::join(cuda::key_of(kernel).values, ", "));
}

std::string part_text(const std::vector<cuda::AttentionKernel>& kernels, std::size_t part,
                      std::size_t parts) {
  std::string code =
      "#include \"cuda/attention/backward_dkv_f32.cuh\"\n"
      "#include \"cuda/attention/backward_dq_f32.cuh\"\n"
      "#include \"cuda/attention/backward_dq_sm80.cuh\"\n"
      "#include \"cuda/attention/backward_rows.cuh\"\n"
      "#include \"cuda/attention/backward_rows_sm90.cuh\"\n"
      "#include \"cuda/attention/backward_sm80.cuh\"\n"
      "#include \"cuda/attention/backward_sm90.cuh\"\n"
      "#include \"cuda/attention/forward_f32.cuh\"\n"
      "#include \"cuda/attention/forward_sm80.cuh\"\n"
      "#include \"cuda/attention/forward_sm90.cuh\"\n"
      "#include \"cuda/attention/forward_walk_sm90.cuh\"\n"
      "#include \"host_model/compiled_kernels.hpp\"\n";
  std::string table;
  for (std::size_t i = part; i < kernels.size(); i += parts) {
    const runtime::KernelSpec spec = cuda::spec_of(kernels[i]);
    code += fmt::format(
        "\n// {}\n#define kConfig kConfig{}\n#define kernel kernel{}\n{}#undef kConfig\n"
        "#undef kernel\nstatic void run{}(const void* params) {{\n"
        "  kernel{}(*static_cast<const stepwell::cuda::{}*>(params));\n}}\n",
        spec.name, i, i, spec.source, i, i, params_of(kernels[i]));
    table += fmt::format("  table.push_back({{{}, run{}}});\n", key_text(kernels[i]), i);
  }
  return code + fmt::format(
                    "\nnamespace stepwell::testing {{\n"
                    "void add_kernels{}(std::vector<CompiledKernel>& table);\n"
                    "void add_kernels{}(std::vector<CompiledKernel>& table) {{\n{}}}\n"
                    "}}  // namespace stepwell::testing\n",
                    part, part, table);
}

std::string registry_text(std::size_t parts, bool loadable) {
  std::string declarations;
  std::string calls;
  for (std::size_t part = 0; part < parts; ++part) {
    declarations += fmt::format("void add_kernels{}(std::vector<CompiledKernel>& table);\n", part);
    calls += fmt::format("  add_kernels{}(table);\n", part);
  }
  return fmt::format(
      "#include \"host_model/compiled_kernels.hpp\"\n\nnamespace stepwell::testing {{\n{}{} {{\n"
      "{}}}\n}}  // namespace stepwell::testing\n",
      declarations,
      loadable ? "extern \"C\" __attribute__((visibility(\"default\")))\n"
                 "void stepwell_add_kernels(std::vector<CompiledKernel>& table)"
               : "void add_compiled_kernels(std::vector<CompiledKernel>& table)",
      calls);
}

/// Leaves a file that is right as it is, so that nothing is compiled again.
void write(const std::string& path, const std::string& text) {
  std::ostringstream old;
  old << std::ifstream(path).rdbuf();
  if (old.str() == text) return;
  std::ofstream file(path);
  file << text;
  if (!file.flush()) {
    fmt::print(stderr, "{} cannot be written\n", path);
    std::exit(1);
  }
}

void generate(const std::string& folder, std::size_t parts, const char* family) {
  const auto kernels = family != nullptr ? probed_kernels(family) : modelled_kernels();
  for (std::size_t part = 0; part < parts; ++part) {
    write(fmt::format("{}/kernels_{}.cpp", folder, part), part_text(kernels, part, parts));
  }
  write(folder + "/registry.cpp", registry_text(parts, family != nullptr));
}

}  // namespace
}  // namespace stepwell::testing

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fputs("generate_kernels FOLDER PARTS [FAMILY]\n", stderr);
    return 1;
  }
  stepwell::testing::generate(argv[1], static_cast<std::size_t>(std::atoi(argv[2])),
                              argc == 4 ? argv[3] : nullptr);
  return 0;
}
