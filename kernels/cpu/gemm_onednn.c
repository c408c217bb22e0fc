/* Matrix products through oneDNN's matmul primitive. Creating a primitive takes far longer than
 * running it, so they are kept in a bounded cache by everything that they depend on. Their scratch
 * memory is the device's.
 */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/values.h"

#define CACHE_SETS 256
#define CACHE_WAYS 4

/* Threads that one product is split over; the rows of a part are a multiple of an AMX tile's. */
#define PARTS_MAX 16
#define PART_ROWS 16
/* Up to here oneDNN 2.6 gains nothing from a second thread with AMX. */
#define SPLIT_ROWS 1024

/* Compared bytewise: every byte is set, no padding. */
typedef struct Key {
    int64_t batch, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c;
    float alpha;
    uint8_t in, out, ta, tb, add, bias, gelu, single; /* single: for one thread */
} Key;
_Static_assert(sizeof(Key) == 10 * 8 + 4 + 8 + 4, "Key has padding that is not accounted for");

/* What one execution needs for itself. */
typedef struct Lane {
    dnnl_memory_t a, b, c, bias, scratch;
} Lane;

typedef struct Entry {
    Key key;
    uint64_t last_use;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t a, b, c, bias, scratch;
    size_t scratch_bytes;
    Lane lanes[PARTS_MAX];
} Entry;

typedef struct Backend {
    dnnl_engine_t engine;
    dnnl_stream_t streams[PARTS_MAX];
    bool bf16, amx;
    uint64_t clock;
    Entry *entries[CACHE_SETS][CACHE_WAYS];
} Backend;

static Status check(dnnl_status_t status, const char *call, const Gemm *g) {
    if (status == dnnl_success) return STATUS_OK;
    return status_set(status == dnnl_out_of_memory ? STATUS_MEMORY : STATUS_DEVICE,
                      "oneDNN %s failed with code %d for a product of %lld x %lld x %lld", call,
                      (int)status, g ? (long long)g->m : 0, g ? (long long)g->n : 0,
                      g ? (long long)g->k : 0);
}

static void entry_free(Entry *e) {
    if (!e) return;
    for (int i = 0; i < PARTS_MAX; i++) {
        const dnnl_memory_t all[] = {e->lanes[i].a, e->lanes[i].b, e->lanes[i].c, e->lanes[i].bias,
                                     e->lanes[i].scratch};
        for (int j = 0; j < 5; j++) {
            if (all[j]) dnnl_memory_destroy(all[j]);
        }
    }
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    mem_free(e);
}

GemmAbilities gemm_abilities(const Device *d) {
    return (GemmAbilities){.bf16 = ((const Backend *)d->backend)->bf16, .bias = true, .gelu = true};
}

static bool isa_has(dnnl_cpu_isa_t wanted) {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa != dnnl_cpu_isa_all && (isa & wanted) == wanted;
}

Status gemm_open(Device *d) {
    Backend *b;
    TRY(mem_alloc((void **)&b, 1, sizeof *b, "oneDNN primitive cache"));
    d->backend = b;
    Status status = check(dnnl_engine_create(&b->engine, dnnl_cpu, 0), "dnnl_engine_create", NULL);
    for (int i = 0; i < PARTS_MAX && status == STATUS_OK; i++)
        status = check(dnnl_stream_create(&b->streams[i], b->engine, dnnl_stream_default_flags),
                       "dnnl_stream_create", NULL);
    if (status != STATUS_OK) {
        gemm_close(d);
        return status;
    }
    /* From AVX-512 on, oneDNN has BF16 products: natively or, more slowly, emulated. */
    b->bf16 = isa_has(dnnl_cpu_isa_avx512_core);
    b->amx = isa_has(dnnl_cpu_isa_avx512_core_amx);
    return STATUS_OK;
}

void gemm_close(Device *d) {
    Backend *b = d->backend;
    if (!b) return;
    for (int set = 0; set < CACHE_SETS; set++) {
        for (int way = 0; way < CACHE_WAYS; way++) entry_free(b->entries[set][way]);
    }
    for (int i = 0; i < PARTS_MAX; i++) {
        if (b->streams[i]) dnnl_stream_destroy(b->streams[i]);
    }
    if (b->engine) dnnl_engine_destroy(b->engine);
    mem_free(b);
    d->backend = NULL;
}

static dnnl_data_type_t data_type(DType t) {
    return t == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A batch of rows x columns; `transposed`: as stored it is columns x rows. */
static Status describe(dnnl_memory_desc_t *out, const Gemm *g, DType dtype, int64_t batch,
                       int64_t rows, int64_t columns, bool transposed, int64_t ld, int64_t stride) {
    const dnnl_dims_t dims = {batch, rows, columns};
    const dnnl_dims_t strides = {batch > 1 ? stride : rows * columns * ld, transposed ? 1 : ld,
                                 transposed ? ld : 1};
    const int from = g->batch > 1 ? 0 : 1;
    return check(dnnl_memory_desc_init_by_strides(out, 3 - from, dims + from, data_type(dtype),
                                                  strides + from),
                 "dnnl_memory_desc_init_by_strides", g);
}

static Status describe_all(const Gemm *g, Entry *e) {
    const int64_t a_batch = g->stride_a ? g->batch : 1, b_batch = g->stride_b ? g->batch : 1;
    TRY(describe(&e->a, g, g->in, a_batch, g->m, g->k, g->ta, g->lda, g->stride_a));
    TRY(describe(&e->b, g, g->in, b_batch, g->k, g->n, g->tb, g->ldb, g->stride_b));
    TRY(describe(&e->c, g, g->out, g->batch, g->m, g->n, false, g->ldc, g->stride_c));
    return describe(&e->bias, g, DTYPE_F32, 1, 1, g->n, false, g->n, g->n);
}

static Status set_attributes(const Gemm *g, dnnl_primitive_attr_t attr) {
    TRY(check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
              "scratchpad mode", g));
    if (g->alpha != 1.0f)
        TRY(check(dnnl_primitive_attr_set_output_scales(attr, 1, 0, &g->alpha), "scales", g));
    if (!g->add && !g->gelu) return STATUS_OK;
    dnnl_post_ops_t ops;
    TRY(check(dnnl_post_ops_create(&ops), "dnnl_post_ops_create", g));
    dnnl_status_t status =
        g->add ? dnnl_post_ops_append_sum(ops, 1.0f)
               : dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_gelu_erf, 0.0f, 0.0f);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return check(status, "post operations", g);
}

static Status create_primitive(Backend *b, const Gemm *g, dnnl_primitive_attr_t attr, Entry *e) {
    TRY(describe_all(g, e));
    TRY(set_attributes(g, attr));
    dnnl_matmul_desc_t desc;
    TRY(check(dnnl_matmul_desc_init(&desc, &e->a, &e->b, g->bias ? &e->bias : NULL, &e->c),
              "dnnl_matmul_desc_init", g));
    dnnl_primitive_desc_t pd;
    TRY(check(dnnl_primitive_desc_create(&pd, &desc, attr, b->engine, NULL),
              "dnnl_primitive_desc_create", g));
    e->scratch = *dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    e->scratch_bytes = dnnl_memory_desc_get_size(&e->scratch);
    const dnnl_status_t status = dnnl_primitive_create(&e->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    return check(status, "dnnl_primitive_create", g);
}

static Status entry_create(Backend *b, const Gemm *g, const Key *key, Entry **out) {
    dnnl_primitive_attr_t attr;
    Entry *e;
    TRY(mem_alloc((void **)&e, 1, sizeof *e, "oneDNN primitive"));
    e->key = *key;
    Status status = check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create", g);
    if (status == STATUS_OK) {
        /* A primitive divides its work among as many threads as there are when it is created. */
        const int threads = omp_get_max_threads();
        if (key->single) omp_set_num_threads(1);
        status = create_primitive(b, g, attr, e);
        omp_set_num_threads(threads);
        dnnl_primitive_attr_destroy(attr);
    }
    if (status != STATUS_OK) {
        entry_free(e);
        return status;
    }
    *out = e;
    return STATUS_OK;
}

static void make_key(Key *key, const Gemm *g, bool single) {
    memset(key, 0, sizeof *key);
    *key = (Key){.batch = g->batch,
                 .m = g->m,
                 .n = g->n,
                 .k = g->k,
                 .lda = g->lda,
                 .ldb = g->ldb,
                 .ldc = g->ldc,
                 .stride_a = g->stride_a,
                 .stride_b = g->stride_b,
                 .stride_c = g->stride_c,
                 .alpha = g->alpha,
                 .in = (uint8_t)g->in,
                 .out = (uint8_t)g->out,
                 .ta = g->ta,
                 .tb = g->tb,
                 .add = g->add,
                 .bias = g->bias != NULL,
                 .gelu = g->gelu,
                 .single = single};
}

/* FNV-1a over the words of the key. */
static uint64_t key_hash(const Key *key) {
    uint64_t words[sizeof *key / 8], hash = 1469598103934665603u;
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 1099511628211u;
    return hash ^ (hash >> 32);
}

/* The entry of a product, created when new; in a full set it replaces the one used longest ago. */
static Status entry_find(Backend *b, const Gemm *g, bool single, Entry **out) {
    Key key;
    make_key(&key, g, single);
    Entry **set = b->entries[key_hash(&key) % CACHE_SETS], **place = &set[0];
    for (int way = 0; way < CACHE_WAYS; way++) {
        if (set[way] && memcmp(&set[way]->key, &key, sizeof key) == 0) {
            *out = set[way];
            (*out)->last_use = ++b->clock;
            return STATUS_OK;
        }
        if (*place && (!set[way] || set[way]->last_use < (*place)->last_use)) place = &set[way];
    }
    TRY(entry_create(b, g, &key, out));
    (*out)->last_use = ++b->clock;
    entry_free(*place);
    *place = *out;
    return STATUS_OK;
}

static Status lane_memory(Backend *b, const Gemm *g, const dnnl_memory_desc_t *md, const void *data,
                          dnnl_memory_t *memory) {
    void *handle = (void *)(uintptr_t)data;
    if (*memory) return check(dnnl_memory_set_data_handle(*memory, handle), "data handle", g);
    return check(dnnl_memory_create(memory, md, b->engine, handle), "dnnl_memory_create", g);
}

/* Points the lane at the operands of g. */
static Status lane_bind(Device *d, const Gemm *g, Entry *e, Lane *lane) {
    Backend *b = d->backend;
    TRY(lane_memory(b, g, &e->a, g->a, &lane->a));
    TRY(lane_memory(b, g, &e->b, g->b, &lane->b));
    TRY(lane_memory(b, g, &e->c, g->c, &lane->c));
    if (g->bias) TRY(lane_memory(b, g, &e->bias, g->bias, &lane->bias));
    if (!e->scratch_bytes) return STATUS_OK;
    void *scratch;
    TRY(arena_take(&d->scratch, e->scratch_bytes, &scratch));
    return lane_memory(b, g, &e->scratch, scratch, &lane->scratch);
}

static dnnl_status_t lane_run(const Entry *e, const Lane *lane, dnnl_stream_t stream) {
    dnnl_exec_arg_t arguments[5] = {
        {DNNL_ARG_SRC, lane->a}, {DNNL_ARG_WEIGHTS, lane->b}, {DNNL_ARG_DST, lane->c}};
    int count = 3;
    if (e->key.bias) arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, lane->bias};
    if (e->scratch_bytes)
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, lane->scratch};
    const dnnl_status_t status = dnnl_primitive_execute(e->primitive, stream, count, arguments);
    return status == dnnl_success ? dnnl_stream_wait(stream) : status;
}

/* Rows [begin, end) of the product. */
static Gemm rows_of(const Gemm *g, int64_t begin, int64_t end) {
    Gemm part = *g;
    const Tensor a = {.data = (void *)(uintptr_t)g->a, .dtype = g->in};
    const Tensor c = {.data = g->c, .dtype = g->out};
    part.m = end - begin;
    part.a = element(&a, g->ta ? begin : begin * g->lda);
    part.c = element(&c, begin * g->ldc);
    return part;
}

/* Every thread computes its own rows. Sums over k are not divided, so the values stay the same. */
static Status run_parts(Device *d, const Gemm *g, int parts) {
    Backend *b = d->backend;
    Entry *entries[PARTS_MAX];
    dnnl_status_t status[PARTS_MAX];
    const int64_t rows = div_up(div_up(g->m, parts), PART_ROWS) * PART_ROWS;
    parts = (int)div_up(g->m, rows);
    for (int p = 0; p < parts; p++) {
        const Gemm part = rows_of(g, p * rows, min_i64((p + 1) * rows, g->m));
        TRY(entry_find(b, &part, true, &entries[p]));
        TRY(lane_bind(d, &part, entries[p], &entries[p]->lanes[p]));
    }
#pragma omp parallel for schedule(static, 1) num_threads(parts)
    for (int p = 0; p < parts; p++)
        status[p] = lane_run(entries[p], &entries[p]->lanes[p], b->streams[p]);
    for (int p = 0; p < parts; p++) TRY(check(status[p], "dnnl_primitive_execute", g));
    return STATUS_OK;
}

Status gemm_backend_run(Device *d, const Gemm *g) {
    Backend *b = d->backend;
    const int64_t threads = min_i64(omp_get_max_threads(), PARTS_MAX);
    const int64_t parts = min_i64(threads, div_up(g->m, PART_ROWS));
    if (b->amx && g->in == DTYPE_BF16 && g->batch == 1 && g->m <= SPLIT_ROWS && parts > 1)
        return run_parts(d, g, (int)parts);
    Entry *e;
    TRY(entry_find(b, g, false, &e));
    TRY(lane_bind(d, g, e, &e->lanes[0]));
    return check(lane_run(e, &e->lanes[0], b->streams[0]), "dnnl_primitive_execute", g);
}
