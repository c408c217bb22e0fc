#include "nn/ops.h"
#include "nn/ops_check.h"

#define CHANNELS 12

Var *op_view_tokens(Tape *t, Tensor cameras, Tensor rgb, int64_t height, int64_t width,
                    int64_t patch) {
    if (tape_poison(t)) return tape_poison(t);
    const bool colours = !tensor_is_none(rgb);
    Var *in[] = {tape_input(t, cameras, "cameras"), colours ? tape_input(t, rgb, "rgb") : NULL};
    if (!op_ready(t, "view_tokens", colours ? 2 : 1, in)) return tape_poison(t);
    const bool sides = patch >= 1 && height >= patch && width >= patch && height % patch == 0 &&
                       width % patch == 0;
    if (!sides || cameras.rank != 3 || cameras.shape[2] != 16 || cameras.dtype != DTYPE_F32 ||
        (colours &&
         (rgb.rank != 4 || rgb.dtype != DTYPE_U8 || rgb.shape[0] != cameras.shape[0] ||
          rgb.shape[1] > cameras.shape[1] || rgb.shape[2] != height * width || rgb.shape[3] != 3)))
        return op_refuse(t, "view_tokens", 2, in,
                         "cameras F32 [B, V, 16], rgb U8 [B, I <= V, height * width, 3] or none, "
                         "sides that are multiples of the patch");
    const int64_t tokens = cameras.shape[1] * (height / patch) * (width / patch);
    Var *y = tape_output(t, tape_act(t), 3,
                         (int64_t[]){cameras.shape[0], tokens, CHANNELS * patch * patch});
    if (tape_poison(t)) return y;
    Status s =
        op_kernels(t)->view_tokens(tape_device(t), y->value, cameras, rgb, height, width, patch);
    return op_done(t, "view_tokens", s, y);
}
