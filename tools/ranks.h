/* Several processes that do one thing together: finding out which one this is, starting the others.
 *
 * `--ranks N` or `--device cuda:0,1` starts N processes of this program on this host, each of which
 * is a rank (tools/launch.c); with `--nodes M --node-rank K --rdzv HOST:PORT` on each of M hosts.
 * Where torchrun, mpirun or srun has started the processes, their environment says so: RANK,
 * WORLD_SIZE, LOCAL_RANK; OMPI_COMM_WORLD_*; SLURM_PROCID in a step of several tasks; PMI_*. Rank 0
 * then listens beside MASTER_PORT, which may be another's.
 */
#ifndef TTV_TOOLS_RANKS_H
#define TTV_TOOLS_RANKS_H

#include "core/peers.h"
#include "core/shard.h"
#include "kernels/comm.h"

/* Whether this process was only there to start others; *code is what it ends with. */
bool ranks_launch(int *code);
/* Meets the other ranks; alone: nothing happens. From then on only rank 0 speaks. */
Status ranks_join(void);
void ranks_leave(bool well);
/* After a run that went well or was stopped: until rank 0 has saved, too. The launcher takes the
 * first that ends with a code for a failure, and ends the others 40 s later. */
void ranks_wait_saved(void);

Peers *ranks_peers(void); /* NULL: alone */
int ranks_rank(void);
int ranks_count(void);
Shard ranks_shard(void);
/* peers_agree; rank 0 alone then tells what went wrong. */
Status ranks_agree_all(Status mine);
/* This rank's part of a batch of all ranks; STATUS_USAGE when it cannot be divided. mirrored: its
 * samples are paired, so that each rank needs an even number. */
Status ranks_batch(int64_t batch, bool mirrored, int64_t *own);
int64_t ranks_batch_of(int64_t batch); /* of a batch that was found to be divisible */

/* --device for this rank: the card of its place on the host. */
Status ranks_device(char *spec, size_t size);
/* What a failure of device_open means where several ranks take cards. */
Status ranks_device_opened(Status s);
/* All ranks: STATUS_USAGE when two have the same card and --device does not list it twice. */
Status ranks_check_cards(Device *d);
/* Threads of the CPU backend and for decoding: a share of the processors where nobody asked. */
int64_t ranks_threads(int64_t asked);
int ranks_on_host(void);

/* ---- launch.c ---- */

typedef struct LaunchPlan {
    int ranks;            /* processes to start here */
    int nodes, node_rank; /* hosts that each start so many, and which of them this is */
    char address[512];    /* several hosts: where rank 0 listens */
    int port;
} LaunchPlan;

/* Starts processes with this program's arguments and waits for all; the exit code. */
int launch_ranks(const LaunchPlan *plan);

#endif
