# kvasir_kernel_flags(ROOT OPTIMISATION...): compile options of the kernel sources below ROOT, for targets of the
# current folder: the flags of their instruction set and the given optimisation.
function(kvasir_kernel_flags root)
  set(avx2 -mavx2 -mfma -mf16c)
  set(avxvnni ${avx2} -mavxvnni)
  # GCC 12's own AVX-512 header uses undefined registers on purpose and then warns of them.
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512
      -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  foreach(isa scalar avx2 avxvnni avx512)
    file(GLOB sources CONFIGURE_DEPENDS ${root}/kernels/${isa}/*.cpp)
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${${isa}};${ARGN}")
  endforeach()
endfunction()
