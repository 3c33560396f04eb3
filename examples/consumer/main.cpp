// Block diffusion attention on one sample of 8 tokens in blocks of 4, through the public C++ API.
//
// All scores are equal, so every row is the mean of the values it sees: row r sees those of its
// own block among the noisy tokens and those before its block among the clean tokens.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <stepwell/stepwell.hpp>
#include <vector>

int main() {
  constexpr int kTokens = 8;
  constexpr int kRows = 2 * kTokens;  // noisy half, clean half
  constexpr int kHeads = 2;
  constexpr int kHeadDim = 16;
  std::vector<float> q(kRows * kHeads * kHeadDim, 0.0f);
  std::vector<float> k(q.size(), 0.0f);
  std::vector<float> v(q.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t row = i / (kHeads * kHeadDim);
    v[i] = static_cast<float>(row);
  }
  std::vector<float> out(q.size());
  std::vector<float> lse(kHeads * kRows);

  const auto view = [](std::vector<float>& data) {
    return stepwell::Tensor::contiguous(data.data(), stepwell::DType::kFloat32,
                                        {1, kRows, kHeads, kHeadDim});
  };
  stepwell::AttentionArgs args;
  args.mask = stepwell::DiffusionMask{.block_size = 4};
  args.q = view(q);
  args.k = view(k);
  args.v = view(v);
  stepwell::AttentionOutputs outputs;
  outputs.out = view(out);
  outputs.lse =
      stepwell::Tensor::contiguous(lse.data(), stepwell::DType::kFloat32, {1, kHeads, kRows});
  try {
    const stepwell::AttentionPlan plan = stepwell::plan_attention_forward(args, outputs);
    std::printf("stepwell %s, %lld visible pairs, %s\n", stepwell::version(),
                static_cast<long long>(stepwell::visible_pairs(args)), plan.describe().c_str());
    stepwell::attention_forward(args, outputs);
  } catch (const stepwell::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  // Noisy row 5 is in the second block: noisy values 4 to 7 and clean values 8 to 11.
  const float mean = out[5 * kHeads * kHeadDim];
  const float count = std::exp(lse[5]);
  std::printf("noisy row 5 sees %.1f keys with mean value %.3f\n", count, mean);
  const bool good = std::abs(mean - 7.5f) < 1e-5f && std::abs(count - 8.0f) < 1e-3f;
  return good ? 0 : 1;
}
