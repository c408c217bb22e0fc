/* Matrix products through oneDNN's matmul primitive. Creating a primitive takes far longer than
 * running it, so they are kept in a bounded cache by everything that they depend on.
 */
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/values.h"

#define CACHE_SETS 256
#define CACHE_WAYS 4

/* Compared bytewise: every byte is set, no padding. */
typedef struct Key {
    int64_t batch, m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c;
    float alpha;
    uint8_t in, out, ta, tb, add, bias, gelu, unused;
} Key;
_Static_assert(sizeof(Key) == 10 * 8 + 4 + 8 + 4, "Key has padding that is not accounted for");

typedef struct Entry {
    Key key;
    uint64_t last_use;
    dnnl_primitive_t primitive; /* NULL: free */
    dnnl_memory_t a, b, c, bias;
} Entry;

typedef struct Backend {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool bf16;
    uint64_t clock;
    Entry entries[CACHE_SETS][CACHE_WAYS];
} Backend;

static Status check(dnnl_status_t status, const char *call, const Gemm *g) {
    if (status == dnnl_success) return STATUS_OK;
    return status_set(status == dnnl_out_of_memory ? STATUS_MEMORY : STATUS_DEVICE,
                      "oneDNN %s failed with code %d for a product of %lld x %lld x %lld", call,
                      (int)status, g ? (long long)g->m : 0, g ? (long long)g->n : 0,
                      g ? (long long)g->k : 0);
}

static void entry_free(Entry *e) {
    if (e->primitive) dnnl_primitive_destroy(e->primitive);
    if (e->a) dnnl_memory_destroy(e->a);
    if (e->b) dnnl_memory_destroy(e->b);
    if (e->c) dnnl_memory_destroy(e->c);
    if (e->bias) dnnl_memory_destroy(e->bias);
    memset(e, 0, sizeof *e);
}

bool gemm_backend_bf16(const Device *d) {
    return ((const Backend *)d->backend)->bf16;
}

bool gemm_backend_epilogue(const Device *d) {
    (void)d;
    return true;
}

/* oneDNN has BF16 products from AVX-512 on; natively or, more slowly, emulated. */
static bool isa_has_bf16(void) {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa != dnnl_cpu_isa_all && (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

Status gemm_open(Device *d) {
    Backend *b;
    TRY(mem_alloc((void **)&b, 1, sizeof *b, "oneDNN primitive cache"));
    d->backend = b;
    Status status = check(dnnl_engine_create(&b->engine, dnnl_cpu, 0), "dnnl_engine_create", NULL);
    if (status == STATUS_OK)
        status = check(dnnl_stream_create(&b->stream, b->engine, dnnl_stream_default_flags),
                       "dnnl_stream_create", NULL);
    if (status != STATUS_OK) {
        gemm_close(d);
        return status;
    }
    b->bf16 = isa_has_bf16();
    return STATUS_OK;
}

void gemm_close(Device *d) {
    Backend *b = d->backend;
    if (!b) return;
    for (int set = 0; set < CACHE_SETS; set++) {
        for (int way = 0; way < CACHE_WAYS; way++) entry_free(&b->entries[set][way]);
    }
    if (b->stream) dnnl_stream_destroy(b->stream);
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

static Status create_attributes(const Gemm *g, dnnl_primitive_attr_t attr) {
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

static Status create_memories(Backend *b, const Gemm *g, const dnnl_memory_desc_t md[4], Entry *e) {
    TRY(check(dnnl_memory_create(&e->a, &md[0], b->engine, DNNL_MEMORY_NONE), "memory", g));
    TRY(check(dnnl_memory_create(&e->b, &md[1], b->engine, DNNL_MEMORY_NONE), "memory", g));
    TRY(check(dnnl_memory_create(&e->c, &md[2], b->engine, DNNL_MEMORY_NONE), "memory", g));
    if (!g->bias) return STATUS_OK;
    return check(dnnl_memory_create(&e->bias, &md[3], b->engine, DNNL_MEMORY_NONE), "memory", g);
}

static Status create_primitive(Backend *b, const Gemm *g, dnnl_primitive_attr_t attr, Entry *e) {
    dnnl_memory_desc_t md[4];
    TRY(describe(&md[0], g, g->in, g->stride_a ? g->batch : 1, g->m, g->k, g->ta, g->lda,
                 g->stride_a));
    TRY(describe(&md[1], g, g->in, g->stride_b ? g->batch : 1, g->k, g->n, g->tb, g->ldb,
                 g->stride_b));
    TRY(describe(&md[2], g, g->out, g->batch, g->m, g->n, false, g->ldc, g->stride_c));
    TRY(describe(&md[3], g, DTYPE_F32, 1, 1, g->n, false, g->n, g->n));
    TRY(create_attributes(g, attr));
    dnnl_matmul_desc_t desc;
    TRY(check(dnnl_matmul_desc_init(&desc, &md[0], &md[1], g->bias ? &md[3] : NULL, &md[2]),
              "dnnl_matmul_desc_init", g));
    dnnl_primitive_desc_t pd;
    TRY(check(dnnl_primitive_desc_create(&pd, &desc, attr, b->engine, NULL),
              "dnnl_primitive_desc_create", g));
    const dnnl_status_t status = dnnl_primitive_create(&e->primitive, pd);
    dnnl_primitive_desc_destroy(pd);
    TRY(check(status, "dnnl_primitive_create", g));
    return create_memories(b, g, md, e);
}

static Status entry_create(Backend *b, const Gemm *g, const Key *key, Entry *e) {
    dnnl_primitive_attr_t attr;
    entry_free(e);
    TRY(check(dnnl_primitive_attr_create(&attr), "dnnl_primitive_attr_create", g));
    const Status status = create_primitive(b, g, attr, e);
    dnnl_primitive_attr_destroy(attr);
    if (status != STATUS_OK) {
        entry_free(e);
        return status;
    }
    e->key = *key;
    return STATUS_OK;
}

static void make_key(Key *key, const Gemm *g) {
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
                 .gelu = g->gelu};
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
static Status entry_find(Backend *b, const Gemm *g, Entry **out) {
    Key key;
    make_key(&key, g);
    Entry *set = b->entries[key_hash(&key) % CACHE_SETS], *oldest = &set[0];
    for (int way = 0; way < CACHE_WAYS; way++) {
        if (set[way].primitive && memcmp(&set[way].key, &key, sizeof key) == 0) {
            *out = &set[way];
            return STATUS_OK;
        }
        if (set[way].last_use < oldest->last_use) oldest = &set[way];
    }
    *out = oldest;
    return entry_create(b, g, &key, oldest);
}

Status gemm_backend_run(Device *d, const Gemm *g) {
    Backend *b = d->backend;
    Entry *e;
    TRY(entry_find(b, g, &e));
    e->last_use = ++b->clock;
    dnnl_memory_set_data_handle(e->a, (void *)(uintptr_t)g->a);
    dnnl_memory_set_data_handle(e->b, (void *)(uintptr_t)g->b);
    dnnl_memory_set_data_handle(e->c, g->c);
    if (g->bias) dnnl_memory_set_data_handle(e->bias, (void *)(uintptr_t)g->bias);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, e->a},
                                         {DNNL_ARG_WEIGHTS, e->b},
                                         {DNNL_ARG_DST, e->c},
                                         {DNNL_ARG_BIAS, e->bias}};
    TRY(check(dnnl_primitive_execute(e->primitive, b->stream, g->bias ? 4 : 3, arguments),
              "dnnl_primitive_execute", g));
    return check(dnnl_stream_wait(b->stream), "dnnl_stream_wait", g);
}
