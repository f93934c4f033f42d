// How the core refuses: the argument, its value and what is allowed, for C++ and for Python alike.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace bs {

class ArgumentError : public std::invalid_argument {
 public:
  using Value = std::variant<int64_t, double, std::string>;

  ArgumentError(const std::string& argument, const Value& value, const std::string& allowed)
      : std::invalid_argument(argument + " = " + shown(value) + ": " + allowed),
        argument_(argument),
        value_(value),
        allowed_(allowed) {}

  const std::string& argument() const { return argument_; }
  const Value& value() const { return value_; }
  const std::string& allowed() const { return allowed_; }

 private:
  static std::string shown(const Value& value) {
    if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
    if (const auto* number = std::get_if<double>(&value)) return std::to_string(*number);
    return "'" + std::get<std::string>(value) + "'";
  }

  std::string argument_;
  Value value_;
  std::string allowed_;
};

[[noreturn]] inline void refuse(const std::string& argument, ArgumentError::Value value,
                                const std::string& allowed) {
  throw ArgumentError(argument, std::move(value), allowed);
}

}  // namespace bs
