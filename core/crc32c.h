/* CRC-32C (Castagnoli), for checkpoint manifests and TensorBoard frames. */
#ifndef TTV_CORE_CRC32C_H
#define TTV_CORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continue with the previous value; start with 0. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
