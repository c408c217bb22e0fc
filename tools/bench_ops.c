/* `ttv bench ops`: every kernel slot at the shapes that the chosen ViTTT gives it.
 *
 * On a card a case goes through several sets of tensors, so that no call finds its data in the
 * cache, and the calls run as a recorded graph.
 */
#include "tools/bench_ops.h"

#include <string.h>

#include "tools/cli.h"

enum { LETTERS = 128 };

/* Parameters of the plain model (vittt.md 5). */
static int64_t parameter_count(const VitttConfig *m) {
    int64_t c = m->width, d = c / m->heads, packed = 3 * c + 3 * d, hidden = m->mlp_ratio * c;
    int64_t mixer = 2 * m->heads * d * d + 9 * d + packed * (c + 1) + c * (c + d + 1);
    int64_t block = 10 * c + 4 * c + mixer + 2 * hidden * c + hidden + c;
    return c * (3 * m->patch * m->patch + 1) + m->depth * block + 2 * c + m->classes * (c + 1);
}

static void set_letters(const Bench *b, int64_t *size) {
    const VitttConfig *m = b->model;
    int64_t side = m->image_size / m->patch, d = m->width / m->heads;
    for (int digit = 0; digit <= 9; digit++) size['0' + digit] = digit;
    size['B'] = b->options->batch;
    size['H'] = size['W'] = side;
    size['N'] = side * side;
    size['I'] = side * m->patch;
    size['C'] = m->width;
    size['D'] = d;
    size['h'] = m->heads;
    size['G'] = b->options->batch * m->heads;
    size['t'] = 3 * m->width;
    size['x'] = side * m->patch * side * m->patch;
    size['V'] = 12 * m->patch * m->patch;
    size['@'] = 16;
    size['P'] = 3 * m->width + 3 * d;
    size['K'] = m->width + d;
    size['M'] = m->mlp_ratio * m->width;
    size['L'] = m->classes;
    size['R'] = b->options->batch * side * side;
    size['p'] = 3 * m->patch * m->patch;
    size['F'] = parameter_count(m);
    /* the recipe's width; on the CPU the model's, so that a small model is quick */
    size['E'] = b->device->kind == DEVICE_CPU ? m->width : 768;
    const int64_t scenes = b->options->batch < 32 ? b->options->batch : 32;
    size['Z'] = 3 * scenes;
    /* matrices of half the width: one of three for each of 16 chunks of 4 heads */
    size['J'] = size['E'] / 2;
    size['X'] = 64;
    /* LaCT-NVS: scenes, their writing and reading tokens, all of those, two widths */
    size['S'] = scenes;
    size['w'] = 512;
    size['r'] = 2048;
    size['Q'] = 512 * scenes;
    size['T'] = 2048 * scenes;
    size['e'] = 2 * size['E'];
}

static Status read_dtype(const Bench *b, char letter, DType *dtype, bool *left_out) {
    *left_out = letter == 's' && b->act != DTYPE_BF16;
    switch (letter) {
    case 'a':
        *dtype = b->act;
        return STATUS_OK;
    case 'f':
        *dtype = DTYPE_F32;
        return STATUS_OK;
    case 'u':
        *dtype = DTYPE_U8;
        return STATUS_OK;
    case 'i':
        *dtype = DTYPE_I64;
        return STATUS_OK;
    case 'n':
        *dtype = DTYPE_I32;
        return STATUS_OK;
    case 's':
        *dtype = DTYPE_BF16;
        return STATUS_OK;
    default:
        return status_set(STATUS_INTERNAL, "bench case: unknown dtype letter '%c'", letter);
    }
}

/* Reads one tensor of a case's text; *text moves behind it. */
static Status read_tensor(const Bench *b, const int64_t *size, const char **text, Tensor *out,
                          bool *left_out) {
    int64_t shape[TENSOR_MAX_RANK];
    int rank = 0;
    DType dtype = DTYPE_F32;
    const char *at = *text;
    TRY(read_dtype(b, *at, &dtype, left_out));
    for (at += 2; *at && *at != ' ' && rank < TENSOR_MAX_RANK; at++)
        shape[rank++] = size[(unsigned char)*at % LETTERS];
    while (*at == ' ') at++;
    *text = at;
    *out = tensor_of(NULL, dtype, rank, shape);
    return STATUS_OK;
}

/* Values of the first set come from the host, those of the others from the first. */
static Status fill_tensor(Bench *b, const OpRun *r, int64_t set, int i) {
    Tensor t = r->sets[set][i];
    bool floats = t.dtype == DTYPE_F32 || t.dtype == DTYPE_BF16;
    if (set > 0 && floats) return r->k->copy(b->device, grad_set(t), r->sets[0][i], 1.0f);
    return bench_fill(b->device, t, (uint64_t)i + 1);
}

/* Takes and fills the tensors of a case in the step arena. */
static Status take_tensors(Bench *b, OpRun *r) {
    int64_t size[LETTERS] = {0};
    set_letters(b, size);
    const char *text = r->op->tensors;
    int count = 0;
    for (; count < CASE_TENSORS && *text; count++) {
        Tensor *t = &r->sets[0][count];
        bool left_out;
        TRY(read_tensor(b, size, &text, t, &left_out));
        if (left_out)
            *t = tensor_none();
        else
            r->bytes += (double)tensor_bytes(*t);
    }
    r->set_count = bench_sets(b->device, r->bytes, CASE_SETS);
    for (int64_t set = 0; set < r->set_count; set++)
        for (int i = 0; i < count; i++) {
            Tensor t = r->sets[0][i];
            if (t.rank == 0) continue;
            TRY(arena_tensor(&b->device->step, t.dtype, t.rank, t.shape, &r->sets[set][i]));
            TRY(fill_tensor(b, r, set, i));
        }
    return STATUS_OK;
}

static Status call_case(void *user) {
    OpRun *r = user;
    r->t = r->sets[r->calls++ % r->set_count];
    return r->op->run(r);
}

/* The time that the ceilings allow, over the time taken. */
static double ceiling_share(const Bench *b, const OpRun *r, double seconds) {
    double product = r->flops / b->peak_flops, traffic = r->bytes / bench_copy_ceiling(b, r->bytes);
    return (product > traffic ? product : traffic) / seconds;
}

static void report_case(Bench *b, const OpRun *r, double seconds) {
    double gbytes = 1e-9 * r->bytes / seconds, flops = r->flops / seconds;
    double share = ceiling_share(b, r, seconds);
    char text[32];
    if (b->json) {
        json_begin_object(b->json);
        json_pair_string(b->json, "op", r->op->slot);
        json_pair_string(b->json, "case", r->op->note);
        bench_number(b->json, "ms", 1e3 * seconds);
        bench_number(b->json, "gflops", 1e-9 * flops);
        bench_number(b->json, "gbytes_per_s", gbytes);
        bench_number(b->json, "ceiling_share", share);
        json_end_object(b->json);
    } else {
        out_printf("%-24s %-26s %9.4f ms %s %8.1f GB/s %4.0f %%\n", r->op->slot, r->op->note,
                   1e3 * seconds, bench_flops_text(b->device, flops, text, sizeof text), gbytes,
                   100.0 * share);
    }
}

static Status bench_case(Bench *b, OpRun *r) {
    int64_t side = b->model->image_size / b->model->patch, heads = b->model->heads;
    r->shape = (VitttShape){b->options->batch, side, side, heads, b->model->width / heads};
    double seconds;
    arena_reset(&b->device->step);
    TRY(take_tensors(b, r));
    TRY(bench_time_recorded(b->device, call_case, r, r->set_count, b->options->seconds, &seconds));
    report_case(b, r, seconds);
    return STATUS_OK;
}

/* A slot that nobody measures would go unnoticed. */
static Status check_slots(void) {
    for (int i = 0; i < kernels_slot_count(); i++) {
        int c = 0;
        while (op_case(c) && strcmp(op_case(c)->slot, kernels_slot_name(i)) != 0) c++;
        if (!op_case(c))
            return status_set(STATUS_INTERNAL, "kernel '%s' has no case in bench_ops_*.c",
                              kernels_slot_name(i));
    }
    return STATUS_OK;
}

static void report_head(const Bench *b) {
    if (!b->json) {
        bench_report_ceilings(b);
        out_printf("%-24s %-26s %12s %15s %13s %6s\n", "kernel", "at", "time", "work", "traffic",
                   "ceiling");
        return;
    }
    json_key(b->json, "ops");
    json_begin_object(b->json);
    json_pair_int(b->json, "batch", b->options->batch);
    bench_report_ceilings(b);
    json_key(b->json, "cases");
    json_begin_array(b->json);
}

Status bench_ops(Bench *b) {
    TRY(check_slots());
    TRY(bench_ceilings(b));
    report_head(b);
    int done = 0;
    const OpCase *op;
    for (int i = 0; (op = op_case(i)) != NULL && !out_failed(); i++) {
        if (!strstr(op->slot, b->options->filter)) continue;
        progress_line(10, "ops: %s, %s", op->slot, op->note);
        OpRun r = {.op = op, .device = b->device, .k = b->device->k, .patch = b->model->patch};
        TRY(status_context(bench_case(b, &r), "%s (%s)", r.op->slot, r.op->note));
        done++;
    }
    arena_reset(&b->device->step);
    if (b->json) {
        json_end_array(b->json);
        json_end_object(b->json);
    }
    if (done == 0)
        return status_set(STATUS_USAGE, "no kernel has '%s' in its name", b->options->filter);
    return STATUS_OK;
}
