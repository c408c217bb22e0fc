/* Which card a device is, whatever number this process sees it under. */
#include <string.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/nccl.h"

Status cuda_card_identity(Device *d, unsigned char id[16]) {
    cudaDeviceProp card;
    CUDA_TRY(cudaGetDeviceProperties(&card, d->index), "reading the card's properties");
    memcpy(id, card.uuid.bytes, sizeof card.uuid.bytes);
    return STATUS_OK;
}
