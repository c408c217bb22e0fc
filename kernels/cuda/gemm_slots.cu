#include "kernels/cuda/gemm_slots.cuh"

/* A node that clears bytes [from, to) of a slot, and the one behind it. */
typedef struct Clear {
    cudaGraphNode_t node, after;
    size_t from, to;
} Clear;

Status slots_open(GemmSlots *s) {
    *s = {};
    CUDA_TRY(cudaMalloc((void **)&s->memory, SLOTS * SLOT_BYTES), "workspaces of cuBLASLt");
    return STATUS_OK;
}

void slots_close(GemmSlots *s) {
    if (s->memory) (void)cudaFree(s->memory);
    *s = {};
}

void *slots_take(GemmSlots *s) {
    return s->memory + (size_t)(s->next++ % SLOTS) * SLOT_BYTES;
}

void slots_begin(GemmSlots *s) {
    s->next = 0;
}

/* The only node in front of or behind another; false where there are more. *out NULL: none. */
static bool only_before(cudaGraphNode_t node, cudaGraphNode_t *out) {
    size_t count = 0;
    *out = NULL;
    if (cudaGraphNodeGetDependencies(node, NULL, NULL, &count) != cudaSuccess || count > 1)
        return false;
    return count == 0 || cudaGraphNodeGetDependencies(node, out, NULL, &count) == cudaSuccess;
}
static bool only_behind(cudaGraphNode_t node, cudaGraphNode_t *out) {
    size_t count = 0;
    *out = NULL;
    if (cudaGraphNodeGetDependentNodes(node, NULL, NULL, &count) != cudaSuccess || count != 1)
        return false;
    return cudaGraphNodeGetDependentNodes(node, out, NULL, &count) == cudaSuccess;
}

/* Whether `node` clears a part of one slot and stands in a chain. */
static bool clear_of(const GemmSlots *s, cudaGraphNode_t node, Clear *c) {
    cudaGraphNodeType type;
    cudaMemsetParams p;
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess || type != cudaGraphNodeTypeMemset ||
        cudaGraphMemsetNodeGetParams(node, &p) != cudaSuccess)
        return false;
    const char *to = (const char *)p.dst;
    if (to < s->memory || to >= s->memory + SLOTS * SLOT_BYTES) return false;
    cudaGraphNode_t before;
    *c = {};
    c->node = node;
    c->from = (size_t)(to - s->memory) % SLOT_BYTES;
    c->to = c->from + p.width * p.elementSize;
    return p.height == 1 && p.value == 0 && c->to <= SLOT_BYTES && only_before(node, &before) &&
           only_behind(node, &c->after);
}

/* Takes a node out of its chain. */
static Status clear_drop(cudaGraph_t graph, const Clear *c) {
    cudaGraphNode_t before;
    if (!only_before(c->node, &before))
        return status_set(STATUS_INTERNAL, "a graph's node has several in front of it");
    CUDA_TRY(cudaGraphDestroyNode(c->node), "arranging a graph");
    if (before)
        CUDA_TRY(cudaGraphAddDependencies(graph, &before, &c->after, NULL, 1), "arranging a graph");
    return STATUS_OK;
}

/* One node before all others: bytes [from, to) of `count` slots. */
static Status clear_all(const GemmSlots *s, cudaGraph_t graph, size_t from, size_t to,
                        size_t count) {
    cudaGraphNode_t roots[16], all;
    size_t number = 16;
    CUDA_TRY(cudaGraphGetRootNodes(graph, roots, &number), "arranging a graph");
    cudaMemsetParams p = {};
    p.dst = s->memory + from;
    p.elementSize = 1, p.width = to - from, p.height = count, p.pitch = SLOT_BYTES;
    CUDA_TRY(cudaGraphAddMemsetNode(&all, graph, NULL, 0, &p), "arranging a graph");
    for (size_t i = 0; i < number; i++)
        CUDA_TRY(cudaGraphAddDependencies(graph, &all, &roots[i], NULL, 1), "arranging a graph");
    return STATUS_OK;
}

static Status hoist(const GemmSlots *s, cudaGraph_t graph, const Clear *clears, size_t count) {
    size_t from = SLOT_BYTES, to = 0;
    for (size_t i = 0; i < count; i++) {
        if (clears[i].from < from) from = clears[i].from;
        if (clears[i].to > to) to = clears[i].to;
        TRY(clear_drop(graph, &clears[i]));
    }
    return clear_all(s, graph, from, to, (size_t)s->next);
}

/* The clearing nodes of a graph; fewer than two are not worth a thing. */
static Status find_clears(const GemmSlots *s, cudaGraph_t graph, Clear *clears,
                          cudaGraphNode_t *nodes, size_t number, size_t *count) {
    size_t roots = 0;
    *count = 0;
    CUDA_TRY(cudaGraphGetNodes(graph, nodes, &number), "arranging a graph");
    for (size_t i = 0; i < number; i++)
        if (clear_of(s, nodes[i], &clears[*count])) (*count)++;
    CUDA_TRY(cudaGraphGetRootNodes(graph, NULL, &roots), "arranging a graph");
    if (roots > 8) *count = 0;
    return STATUS_OK;
}

Status slots_hoist(GemmSlots *s, cudaGraph_t graph) {
    size_t number = 0, count;
    void *nodes = NULL, *clears = NULL;
    if (s->next == 0 || s->next > SLOTS) return STATUS_OK; /* a slot would have served twice */
    CUDA_TRY(cudaGraphGetNodes(graph, NULL, &number), "arranging a graph");
    Status status = mem_alloc(&nodes, (int64_t)number, sizeof(cudaGraphNode_t), "nodes of a graph");
    if (status == STATUS_OK)
        status = mem_alloc(&clears, (int64_t)number, sizeof(Clear), "nodes of a graph");
    if (status == STATUS_OK)
        status = find_clears(s, graph, (Clear *)clears, (cudaGraphNode_t *)nodes, number, &count);
    if (status == STATUS_OK && count >= 2) status = hoist(s, graph, (const Clear *)clears, count);
    mem_free(nodes);
    mem_free(clears);
    (void)cudaGetLastError(); /* of questions that a node did not answer */
    return status;
}
