// ONNX Runtime's functions in C++: a status that says no becomes an exception, what is made is
// released. Nothing here holds state.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "c_api.h"

namespace bs::ort {

// What the runtime itself refused.
class RuntimeRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw RuntimeRefusal(message);
}

// True if the call succeeded; what it said otherwise is dropped.
inline bool succeeds(const OrtApi& api, OrtStatus* status) {
  if (status != nullptr) api.ReleaseStatus(status);
  return status == nullptr;
}

// Calls body(), which may throw; an exception becomes a status that begins with `where`.
template <class Body>
OrtStatus* guarded(const OrtApi& api, const std::string& where, Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(kOrtFail, "blockscale: not enough memory");
  } catch (const std::exception& error) {
    try {
      return api.CreateStatus(kOrtInvalidArgument, (where + ": " + error.what()).c_str());
    } catch (...) {
      return api.CreateStatus(kOrtInvalidArgument, error.what());
    }
  } catch (...) {
    return api.CreateStatus(kOrtFail, "blockscale: an error of unknown kind");
  }
}

// Owns what an Api function made, by the function that releases it.
template <class T>
class Owned {
 public:
  using Release = void(BS_ORT_CALL*)(T*);

  Owned(T* object, Release release) : object_(object, release) {}
  T* get() const { return object_.get(); }

 private:
  std::unique_ptr<T, Release> object_;
};

}  // namespace bs::ort
