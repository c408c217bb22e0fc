/* Blocks of LaCT-NVS whose tokens only read, without gradients (lact_nvs.md 3.2 to 3.4). */
#include "nn/ops.h"
#include "nn/ops_check.h"

/* Columns of a token that all blocks need of ViewForm.wide. */
static int64_t widest(int64_t width, int count, const ViewBlock *block, const ViewForm *f) {
    int64_t most = 3 * width;
    if (f->colours_w.data && f->colours_w.shape[0] > most) most = f->colours_w.shape[0];
    for (int i = 0; i < count; i++) {
        const int64_t gates = 3 * block[i].back.shape[1] * block[i].back.shape[2];
        const int64_t hidden = block[i].fc_w.shape[0];
        if (gates > most) most = gates;
        if (hidden > most) most = hidden;
    }
    return most;
}

static bool blocks_fit(const Tape *t, const Var *x, const ViewForm *f) {
    const Tensor v = x->value;
    return !tape_recording(t) && v.rank == 3 && op_is_act(v.dtype) && x->owns_value &&
           f->heads >= 1 && f->window >= 1 && v.shape[2] % f->heads == 0 &&
           v.shape[0] * v.shape[1] % f->window == 0;
}

static Status take_work(Tape *t, Tensor x, int64_t wide, ViewForm *f) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    TRY(tape_take(t, x.dtype, 2, (int64_t[]){rows, width}, &f->u));
    TRY(tape_take(t, x.dtype, 2, (int64_t[]){rows, width}, &f->o));
    TRY(tape_take(t, x.dtype, 2, (int64_t[]){rows, wide}, &f->wide));
    TRY(tape_zeros(t, width, &f->zeros));
    if (!tensor_is_none(f->zeros)) return STATUS_OK;
    TRY(tape_take(t, DTYPE_F32, 1, &width, &f->zeros));
    return op_kernels(t)->zero(tape_device(t), f->zeros);
}

Var *op_view_blocks(Tape *t, Var *x, int count, const ViewBlock *block, ViewForm form) {
    if (!op_ready(t, "view_blocks", 1, &x)) return tape_poison(t);
    if (!blocks_fit(t, x, &form))
        return op_refuse(t, "view_blocks", 1, &x,
                         "a value of the pass [B, N, d], whole windows, a tape that does not "
                         "record");
    const Tensor v = x->value;
    Var *y = x;
    if (form.colours_w.data) {
        y = tape_output(t, DTYPE_F32, 3,
                        (int64_t[]){v.shape[0], v.shape[1], form.colours_w.shape[0]});
        if (tape_poison(t)) return y;
        form.colours = y->value;
    }
    Status s = take_work(t, v, widest(tensor_last(v), count, block, &form), &form);
    if (s == STATUS_OK) s = op_kernels(t)->view_blocks(tape_device(t), v, count, block, &form);
    if (s == STATUS_OK) {
        tape_give(t, form.wide);
        tape_give(t, form.o);
        tape_give(t, form.u);
    }
    return op_done(t, "view_blocks", s, y);
}
