#include "engine/engine_thread.h"

namespace kvasir::engine {

EngineThread::EngineThread(Engine& engine)
    : engine_(engine), thread_([&engine] {
        while (engine.wait_for_work()) engine.step();
      }) {}

EngineThread::~EngineThread() {
  engine_.stop();
  join();
}

void EngineThread::join() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace kvasir::engine
