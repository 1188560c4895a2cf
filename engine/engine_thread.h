// The one thread that owns the engine: steps while there is work, sleeps in the mailbox when there
// is none.
#pragma once

#include "engine/engine.h"

#include <thread>

namespace kvasir::engine {

class EngineThread {
 public:
  /// Starts at once; `engine` must outlive the thread.
  explicit EngineThread(Engine& engine);
  /// Stops the engine (live sequences end with kDrain) and joins.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  /// Waits until the engine is drained or stopped.
  void join();

 private:
  Engine& engine_;
  std::thread thread_;
};

}  // namespace kvasir::engine
