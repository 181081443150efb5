// A map whose values are computed once each, by the thread that asks first, outside the map's lock.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace fmlp::cuda {

template <class Value>
class OnceCache {
 public:
  using Result = std::shared_ptr<const Value>;

  // `compute` must not throw.
  template <class Compute>
  Result get(const std::string& key, Compute compute) {
    std::promise<Result> promise;
    std::shared_future<Result> future;
    bool mine = false;
    {
      const std::lock_guard lock(mutex_);
      auto [entry, inserted] = results_.try_emplace(key);
      if (inserted) entry->second = promise.get_future().share();
      future = entry->second;
      mine = inserted;
    }
    if (mine) promise.set_value(std::make_shared<const Value>(compute()));
    return future.get();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<Result>> results_;
};

}  // namespace fmlp::cuda
