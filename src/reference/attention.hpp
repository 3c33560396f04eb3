// The oracle: naive attention in float64 from the element rule. It shares no code with any backend;
// of geometry it uses only the mask descriptions and the layout.
#pragma once

#include "core/problem.hpp"

namespace stepwell::reference {

/// Whether the element rule lets a query see a key of the same sample. Indices count inside
/// segments (view or clean half); views differ only for noisy tokens.
bool visible(const geometry::SampleMask& mask, geometry::Half query_half, int query_view,
             int query_index, geometry::Half key_half, int key_view, int key_index);

/// Writes out and lse (where given) like a backend, computing in float64 from inputs of any dtype.
/// Results go to tensors of dtype problem.dtype, lse in float32. Quadratic memory in the longest
/// sample.
void forward(const AttentionProblem& problem);
void backward(const AttentionProblem& problem);

}  // namespace stepwell::reference
