# Flags that every target of kvasir shares: warnings as errors, the x86-64-v2 baseline (faster instruction
# sets are chosen at run time, see runtime/kernels), strict float arithmetic, and the sanitizers.
add_library(kvasir_flags INTERFACE)
target_compile_options(kvasir_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror
  -march=x86-64-v2
  # The same bytes out: no contraction into FMA behind our back, explicit intrinsics do it.
  -ffp-contract=off
  -fno-omit-frame-pointer)
target_include_directories(kvasir_flags INTERFACE ${PROJECT_SOURCE_DIR})

if(KVASIR_SANITIZE)
  add_compile_options(-fsanitize=${KVASIR_SANITIZE} -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${KVASIR_SANITIZE})
  # GCC's flow warnings see the instrumentation and cry wolf; the other builds keep them.
  target_compile_options(kvasir_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(KVASIR_SANITIZE MATCHES "thread")
    # ThreadSanitizer cannot see fences; Asio's locks order its handlers without them.
    target_compile_definitions(kvasir_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

if(KVASIR_BUILD_FUZZERS)
  # Coverage and comparisons of all our code guide the fuzzers; their main is linked in tests/fuzz.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
