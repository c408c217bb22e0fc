/* The slot view_blocks in terms of others: its reference, and what a backend does with sizes that
 * its own form does not suit. */
#ifndef TTV_KERNELS_VIEW_BLOCKS_H
#define TTV_KERNELS_VIEW_BLOCKS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

Status view_blocks_composed(Device *d, Tensor x, int count, const ViewBlock *block,
                            const ViewForm *form);
/* The colours alone. */
Status view_colours_composed(Device *d, Tensor x, const ViewForm *form);

#ifdef __cplusplus
}
#endif

#endif
