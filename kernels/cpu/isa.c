/* Which instruction sets this room was compiled for. No code: it must load on any processor. */
#include "kernels/backend.h"

const unsigned cpu_isa_compiled = 0
#ifdef __AVX2__
                                  | CPU_ISA_AVX2
#endif
#ifdef __FMA__
                                  | CPU_ISA_FMA
#endif
#ifdef __AVX512F__
                                  | CPU_ISA_AVX512F
#endif
#ifdef __AVX512BW__
                                  | CPU_ISA_AVX512BW
#endif
#ifdef __AVX512DQ__
                                  | CPU_ISA_AVX512DQ
#endif
#ifdef __AVX512VL__
                                  | CPU_ISA_AVX512VL
#endif
#ifdef __AVX512BF16__
                                  | CPU_ISA_AVX512BF16
#endif
    ;
