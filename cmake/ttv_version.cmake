# build/generated/version.h: version, git id, what was built in.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
                OUTPUT_VARIABLE TTV_GIT_ID OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT TTV_GIT_ID)
  set(TTV_GIT_ID "unknown")
endif()
set(TTV_BUILT_WITH_CUDA 0)
if(TTV_HAVE_CUDA)
  set(TTV_BUILT_WITH_CUDA 1)
endif()
configure_file(${CMAKE_SOURCE_DIR}/cmake/version.h.in ${CMAKE_BINARY_DIR}/generated/version.h)
