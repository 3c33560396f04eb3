#include "stepwell/attention.hpp"

namespace stepwell {

const char* version() { return STEPWELL_VERSION; }

}  // namespace stepwell
