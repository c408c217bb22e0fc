/* The CUDA backend as the host sees it: plain C, nothing of CUDA's own headers.
 *
 * Everything of one Device runs on one stream, in call order. After the first step (when arenas,
 * product plans and staging exist) no call allocates, so a whole step can be recorded as a graph
 * and replayed. Threads: one thread at a time per Device.
 */
#ifndef TTV_KERNELS_CUDA_DEVICE_H
#define TTV_KERNELS_CUDA_DEVICE_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Card `index`. STATUS_DEVICE when there is none, when the driver is older than this build's CUDA,
 * or when the build holds no code for the card. */
Status cuda_device_open(int index, Device **out);

/* Records what is called on the device until cuda_graph_end() instead of running it. In between
 * only kernels may be called: a pull, a sync or a growing arena fails the recording. */
Status cuda_graph_begin(Device *d);
Status cuda_graph_end(Device *d, DeviceGraph **out);
Status cuda_graph_launch(Device *d, DeviceGraph *g);
void cuda_graph_free(DeviceGraph *g);

/* The stream (cudaStream_t) on which all kernels of the device run. */
void *cuda_device_stream(Device *d);

#ifdef __cplusplus
}
#endif

#endif
