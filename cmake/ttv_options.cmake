# Flags shared by every room, as interface libraries.
add_library(ttv_flags INTERFACE)
target_compile_options(ttv_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -ffp-contract=on -fno-math-errno>)
target_compile_definitions(ttv_flags INTERFACE _GNU_SOURCE)
if(TTV_WERROR)
  target_compile_options(ttv_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(TTV_SANITIZE)
  target_compile_options(ttv_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=${TTV_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g>)
  target_link_options(ttv_flags INTERFACE -fsanitize=${TTV_SANITIZE})
endif()

# Instruction set of the hot rooms. The program checks at start that the processor has it.
add_library(ttv_arch INTERFACE)
target_compile_options(ttv_arch INTERFACE $<$<COMPILE_LANGUAGE:C>:-O3 -march=${TTV_CPU_ARCH}>)
