#include "source.h"

#include <cmath>
#include <cstdio>

namespace fmlp::cuda {
namespace {

const char* scalar_name(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float64:
      return "float64";
  }
  return "";
}

const char* activation_name(ActivationKind kind) {
  switch (kind) {
#define FMLP_NAME(name, ...) \
  case ActivationKind::name: \
    return #name;
    FMLP_ACTIVATIONS(FMLP_NAME)
#undef FMLP_NAME
  }
  return "";
}

// Appends a double that reads back as the same double.
void append_exact(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "__builtin_nan(\"\")";
  } else if (std::isinf(value)) {
    text += value < 0 ? "-__builtin_inf()" : "__builtin_inf()";
  } else {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", value);
    text += digits;
  }
}

std::string pair(const double (&values)[2]) {
  std::string text = "{";
  append_exact(text, values[0]);
  text += ", ";
  append_exact(text, values[1]);
  text += "}";
  return text;
}

void constant(std::string& text, const char* type, const char* name, const std::string& value) {
  text += std::string("  static constexpr ") + type + " " + name + " = " + value + ";\n";
}
void constant(std::string& text, const char* name, int value) { constant(text, "int", name, std::to_string(value)); }
void constant(std::string& text, const char* name, bool value) {
  constant(text, "bool", name, value ? "true" : "false");
}

}  // namespace

std::string kernel_source(const MlpProblem& problem, const Plan& plan) {
  const std::string kernel = kernel_name(plan.kernel);
  std::string widths = "{";
  for (int l = 0; l <= problem.depth; ++l) widths += (l > 0 ? ", " : "") + std::to_string(problem.widths[l]);

  std::string text = "#include \"" + kernel + ".cuh\"\nstruct Config {\n";
  text += std::string("  using scalar = fmlp::") + scalar_name(problem.dtype) + ";\n";
  constant(text, "depth", problem.depth);
  constant(text, "int", "widths[depth + 1]", widths + "}");
  constant(text, "unsigned", "bias_mask", std::to_string(problem.bias_mask));
  constant(text, "alignment", problem.alignment);
  constant(text, "allow_tf32", problem.allow_tf32);
  constant(text, "saves_hidden", problem.saves_hidden);
  text += std::string("  using activation = fmlp::") + activation_name(problem.activation.kind) + ";\n";
  text += std::string("  using output_activation = fmlp::") + activation_name(problem.output_activation.kind) + ";\n";
  constant(text, "double", "activation_parameters[2]", pair(problem.activation.parameters));
  constant(text, "double", "output_activation_parameters[2]", pair(problem.output_activation.parameters));
  constant(text, "threads", plan.threads);
  constant(text, "rows_per_block", plan.rows_per_block);
  constant(text, "rows_per_warp", plan.rows_per_warp);
  constant(text, "blocks_per_multiprocessor", plan.blocks_per_multiprocessor);
  constant(text, "persistent", plan.persistent);
  constant(text, "dependent_launch", plan.dependent_launch);
  constant(text, "cluster_size", plan.cluster_size);
  constant(text, "stages", plan.stages);
  constant(text, "shared_bytes", plan.shared_bytes);
  text += "};\n";
  text += "extern \"C\" __global__ void __launch_bounds__(Config::threads, Config::blocks_per_multiprocessor)\n";
  text += "fmlp_kernel(const __grid_constant__ fmlp::KernelArguments<Config::depth> arguments) {\n";
  text += "  fmlp::" + kernel + "<Config>(arguments);\n}\n";
  return text;
}

}  // namespace fmlp::cuda
