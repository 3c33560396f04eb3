// All of the public C++ API.
#pragma once

#include "stepwell/attention.hpp"
#include "stepwell/error.hpp"
#include "stepwell/mask.hpp"
#include "stepwell/tensor.hpp"
