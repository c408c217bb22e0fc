#include "kernels/view_blocks.h"

#include "kernels/cpu/table.h"

Status view_blocks_cpu(Device *d, Tensor x, int count, const ViewBlock *block,
                       const ViewForm *form) {
    return view_blocks_composed(d, x, count, block, form);
}
