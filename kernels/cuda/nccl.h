/* NCCL behind kernels/comm.h; plain C. */
#ifndef TTV_KERNELS_CUDA_NCCL_H
#define TTV_KERNELS_CUDA_NCCL_H

#include "core/peers.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The card's own number, its UUID (card_identity.cu). */
Status cuda_card_identity(Device *d, unsigned char id[16]);

typedef struct Nccl Nccl;

/* Loads the library and joins the cards of all ranks. */
Status nccl_open(Device *d, Peers *p, Nccl **out);
void nccl_close(Nccl *n, bool well);
Status nccl_library(char *out, size_t size);
/* In place, on the device's stream. */
Status nccl_sum(Nccl *n, void *data, int64_t count);
Status nccl_broadcast(Nccl *n, void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
