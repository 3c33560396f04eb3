// Words of error messages.
#pragma once

#include <string>

#include "stepwell/attention.hpp"

namespace stepwell {

const char* to_text(DType dtype);
const char* to_text(TokenLayout layout);
const char* to_text(SequenceMask::Kind kind);
/// "cuda:0"; "cpu" without an index.
std::string to_text(Device device);
/// "[2, 16, 8, 64]"
std::string shape_text(const Tensor& tensor);

}  // namespace stepwell
