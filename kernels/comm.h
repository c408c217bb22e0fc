/* Sums over the cards (or processes on the CPU) of several ranks: core/peers.h for tensors.
 *
 * On the CPU numbers go through the peers' connections and are added in the order of the ranks. On
 * CUDA NCCL does it, which is loaded when it is wanted (libnccl.so.2): the call returns when the
 * sum is queued behind the kernels that were launched before. Either way all ranks get the same
 * bits, and the same ones in every run on the same machines.
 */
#ifndef TTV_KERNELS_COMM_H
#define TTV_KERNELS_COMM_H

#include "core/peers.h"
#include "kernels/device.h"

typedef struct Comm Comm;

/* All ranks at once. STATUS_DEVICE: NCCL cannot be loaded, or it refuses; STATUS_PEER. The peers
 * stay the caller's and must live longer. */
Status comm_open(Device *d, Peers *p, Comm **out);
/* All ranks at once. STATUS_USAGE, naming two, when ranks have the same card, which NCCL refuses
 * and nobody is served by. comm_open asks this itself. */
Status comm_check_cards(Device *d, Peers *p);
/* NULL: nothing. well: no sum is under way. */
void comm_close(Comm *c, bool well);

/* "NCCL 2.28.9"; STATUS_DEVICE: sums over cards cannot be had here, and why. */
Status comm_library(char *out, size_t size);

int comm_ranks(const Comm *c); /* NULL: 1 */
int comm_rank(const Comm *c);  /* NULL: 0 */
Peers *comm_peers(const Comm *c);

/* t: F32, becomes the sum over the ranks. Between two graphs, not in one. */
Status comm_sum(Comm *c, Tensor t);
/* t, of any type, becomes rank 0's. */
Status comm_broadcast(Comm *c, Tensor t);

#endif
