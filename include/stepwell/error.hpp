// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace stepwell {

/// What kind of mistake an Error reports; the Python package raises the exception named beside
/// each.
enum class ErrorKind {
  kValue,           ///< ValueError: an argument's value is not accepted
  kType,            ///< TypeError: an argument's dtype, rank or device is not accepted
  kNotImplemented,  ///< NotImplementedError: the arguments are valid, this backend lacks the
                    ///< feature
  kRuntime,         ///< RuntimeError: the system failed (no memory, no device, a driver error)
};

/// Thrown by every function of the library; the message names the argument, what was given and what
/// is accepted. The library never prints, exits or aborts.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace stepwell
