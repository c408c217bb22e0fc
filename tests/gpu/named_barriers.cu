/* What compute-sanitizer's racecheck makes of barriers that a part of a block meets at.
 *
 *   compute-sanitizer --tool racecheck tests/gpu/named_barriers
 *
 * Patterns of kernels/cuda, each with barriers that put every pair of accesses in order (PTX:
 * bar.sync and bar.arrive order what the threads that take part did before with what they do
 * behind it) and with one left out:
 *
 *   handoff<BEFORE, MEET>  few_rows.cu: of 320 threads 128 leave values for 128 others; 64 do
 *                          something else. BEFORE: what writers, or both, met at first
 *   rows<COUNT, GUARD>     norm.cu: each row of threads meets for itself, some rows more often than
 *                          others; then row after row adds to the same sums, the block meets
 * between
 *
 * compute-sanitizer of CUDA 13.0 on an H200 reports every form without its barrier, and none of
 * the others as long as all threads concerned have passed equally many barriers. Where some passed
 * one more it reports handoff<1, 1>, <1, 2>, <1, 4> and rows<1, 1> as well, and of these <1, 4> and
 * rows<1, 1> have a __syncthreads() between the two accesses: it takes equal counts for "nothing
 * lies between". So kernels keep the counts equal, or use an mbarrier. racecheck_sees.sh looks
 * whether it still is so.
 *
 *   turns<GUARD>           values again and again in the same place, by mbarriers full and empty: a
 *                          ring of one stage; the tool understands it
 *
 * Two kernels without a barrier, one called as cuBLASLt calls its own, show what check.sh leaves
 * out. cluster_barriers.cu has the forms between the blocks of a cluster.
 *
 * Prints, for each form, whether the values were right. Exit 0 when all guarded forms gave the
 * right values, 77 without a card.
 */
#include <stdio.h>

#include "barrier_forms.cuh"

enum { ALONE_NOT, ALONE_WRITERS, ALONE_WRITERS_MBARRIER, ALONE_BOTH }; /* BEFORE */
enum { MEET_NOT, MEET_PART, MEET_ARRIVE, MEET_MBARRIER, MEET_BLOCK };  /* MEET */
enum { COUNT_SAME, COUNT_DIFFERENT, COUNT_MADE_SAME };                 /* COUNT */

#define BLOCKS 264
#define PART   128 /* threads of a role */
#define WIDTH  64  /* threads of a row */
#define ROWS   6
#define ROUNDS 5

/* ---- one part of a block leaves values for another ---- */

template <int BEFORE, int MEET>
__global__ void __launch_bounds__(2 * PART + 64) handoff(float2 *out, int late, int patience) {
    __shared__ float2 rows[PART];
    __shared__ float2 table[PART];
    __shared__ __align__(8) unsigned long long barriers[2];
    const unsigned first = address(barriers), second = first + 8;
    const int t = threadIdx.x % PART, role = threadIdx.x / PART; /* readers, writers, others */
    if (threadIdx.x == 2 * PART) {
        mbarrier_init(first, PART);
        mbarrier_init(second, PART);
    }
    __syncthreads();
    if (role == 1) {
        if (BEFORE != ALONE_NOT) table[t] = make_float2((float)t, 1);
        if (BEFORE == ALONE_WRITERS || BEFORE == ALONE_BOTH) meet(3, PART);
        if (BEFORE == ALONE_WRITERS_MBARRIER) {
            mbarrier_arrive(first);
            mbarrier_wait(first);
        }
        wait_clocks(late);
        float2 v = make_float2((float)t, 1);
        if (BEFORE != ALONE_NOT) v = table[t ^ 33]; /* another warp's */
        rows[t ^ (BEFORE != ALONE_NOT ? 33 : 0)] = make_float2(v.x + (float)blockIdx.x, v.y);
        if (MEET == MEET_PART) meet(2, 2 * PART);
        if (MEET == MEET_ARRIVE) arrive(2, 2 * PART);
        if (MEET == MEET_MBARRIER) mbarrier_arrive(second);
    } else if (role == 0) {
        if (BEFORE == ALONE_BOTH) meet(4, PART);
        if (MEET == MEET_NOT) wait_clocks(patience);
        if (MEET == MEET_PART || MEET == MEET_ARRIVE) meet(2, 2 * PART);
        if (MEET == MEET_MBARRIER) mbarrier_wait(second);
    }
    if (MEET == MEET_BLOCK) __syncthreads();
    if (role == 0) out[blockIdx.x * PART + t] = rows[t ^ 33];
}

template <int BEFORE, int MEET> static int handoff_run(const char *name) {
    static float2 host[BLOCKS * PART];
    float2 *out;
    int wrong = 0;
    if (cudaMalloc(&out, sizeof host) != cudaSuccess) return 1;
    for (int late = 0; late <= 20000; late += 20000) {
        handoff<BEFORE, MEET><<<BLOCKS, 2 * PART + 64>>>(out, late, 40000000);
        if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) wrong++;
        for (int i = 0; i < BLOCKS * PART; i++)
            wrong += host[i].x != (float)((i % PART ^ 33) + i / PART);
    }
    cudaFree(out);
    printf("handoff<%d, %d> %-54s %s\n", BEFORE, MEET, name, wrong ? "WRONG VALUES" : "right");
    return wrong && MEET != MEET_NOT;
}

/* ---- rows of threads that meet for themselves, then the block ---- */

template <int COUNT, bool GUARD> __global__ void __launch_bounds__(WIDTH *ROWS) rows(float *out) {
    __shared__ float sums[WIDTH];
    __shared__ float shared[ROWS][2][2];
    const int t = threadIdx.x, y = threadIdx.y, more = COUNT != COUNT_SAME && y < ROWS / 2;
    float mine = 0;
    for (int i = 0; i < ROUNDS + more; i++) {
        if (t % 32 == 0) shared[y][i & 1][t / 32] = (float)(i + y);
        meet(y + 1, WIDTH);
        mine += shared[y][i & 1][0] + shared[y][i & 1][1];
    }
    if (COUNT == COUNT_MADE_SAME && !more) meet(y + 1, WIDTH);
    for (int row = 0; row < ROWS; row++) {
        if (y == row) sums[t] = row ? sums[t] + mine : mine;
        if (GUARD) __syncthreads();
    }
    __syncthreads();
    if (y == 0) out[blockIdx.x * WIDTH + t] = sums[t];
}

template <int COUNT, bool GUARD> static int rows_run(const char *name) {
    static float host[BLOCKS * WIDTH];
    float *out, expected = 0;
    int wrong = 0;
    for (int y = 0; y < ROWS; y++)
        for (int i = 0; i < ROUNDS + (COUNT != COUNT_SAME && y < ROWS / 2); i++)
            expected += 2 * (float)(i + y);
    if (cudaMalloc(&out, sizeof host) != cudaSuccess) return 1;
    rows<COUNT, GUARD><<<BLOCKS, dim3(WIDTH, ROWS)>>>(out);
    if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) wrong++;
    for (int i = 0; i < BLOCKS * WIDTH; i++) wrong += host[i] != expected;
    cudaFree(out);
    printf("rows<%d, %d> %-57s %s\n", COUNT, GUARD, name, wrong ? "WRONG VALUES" : "right");
    return wrong && GUARD;
}

/* ---- values for others again and again, in the same place ---- */

template <bool GUARD> __global__ void __launch_bounds__(2 * PART) turns(float *out, int patience) {
    __shared__ float row[PART];
    __shared__ __align__(8) unsigned long long barriers[2];
    const unsigned full = address(barriers), empty = full + 8;
    const int t = threadIdx.x % PART;
    float sum = 0;
    if (threadIdx.x == 0) {
        mbarrier_init(full, PART);
        mbarrier_init(empty, PART);
    }
    __syncthreads();
    for (int i = 0; i < ROUNDS; i++) {
        if (threadIdx.x < PART) {
            if (i > 0 && GUARD) mbarrier_wait(empty, i - 1 & 1);
            if (i > 0 && !GUARD) wait_clocks(patience);
            row[t] = (float)(t + i);
            mbarrier_arrive(full);
        } else {
            mbarrier_wait(full, i & 1);
            sum += row[t ^ 33];
            if (GUARD) mbarrier_arrive(empty);
        }
    }
    if (threadIdx.x >= PART) out[blockIdx.x * PART + t] = sum;
}

template <bool GUARD> static int turns_run(const char *name) {
    static float host[BLOCKS * PART];
    float *out;
    int wrong = 0;
    if (cudaMalloc(&out, sizeof host) != cudaSuccess) return 1;
    turns<GUARD><<<BLOCKS, 2 * PART>>>(out, 4000000);
    if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) wrong++;
    for (int i = 0; i < BLOCKS * PART; i++)
        wrong += host[i] != (float)(ROUNDS * (i % PART ^ 33) + ROUNDS * (ROUNDS - 1) / 2);
    cudaFree(out);
    printf("turns<%d> %-59s %s\n", GUARD, name, wrong ? "WRONG VALUES" : "right");
    return wrong && GUARD;
}

/* ---- kernels whose reports check.sh leaves out by name ---- */

/* No barrier between writing and reading; PART threads. */
static __device__ __forceinline__ void racy(float *out) {
    __shared__ float row[PART];
    row[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = row[threadIdx.x ^ 33];
}

/* Called as cuBLASLt calls its own: to be left out. */
extern "C" __global__ void __launch_bounds__(PART) nvjet_sm90_stand_in(float *out) {
    racy(out);
}
/* Called much alike, but a name of C++: to be reported. */
template <typename T> __global__ void __launch_bounds__(PART) nvjet_sm90_ours(T *out) {
    racy(out);
}

static int left_out_run(void) {
    float *out;
    if (cudaMalloc(&out, PART * sizeof *out) != cudaSuccess) return 1;
    nvjet_sm90_stand_in<<<1, PART>>>(out);
    nvjet_sm90_ours<<<1, PART>>>(out);
    const cudaError_t end = cudaDeviceSynchronize();
    cudaFree(out);
    return end != cudaSuccess;
}

int main(void) {
    int cards = 0, bad = 0;
    if (cudaGetDeviceCount(&cards) != cudaSuccess || cards == 0) {
        puts("skipped: no card");
        return 77;
    }
    bad += handoff_run<ALONE_NOT, MEET_BLOCK>("the block meets");
    bad += handoff_run<ALONE_NOT, MEET_PART>("256 of 320 meet");
    bad += handoff_run<ALONE_NOT, MEET_ARRIVE>("writers arrive, readers wait");
    bad += handoff_run<ALONE_NOT, MEET_MBARRIER>("at an mbarrier");
    bad += handoff_run<ALONE_WRITERS, MEET_BLOCK>("writers alone before; the block meets");
    bad += handoff_run<ALONE_WRITERS, MEET_PART>("writers alone before; 256 meet");
    bad += handoff_run<ALONE_WRITERS, MEET_ARRIVE>("writers alone before; they arrive");
    bad += handoff_run<ALONE_WRITERS, MEET_MBARRIER>("writers alone before; at an mbarrier");
    bad += handoff_run<ALONE_WRITERS_MBARRIER, MEET_PART>("writers alone at an mbarrier; 256 meet");
    bad += handoff_run<ALONE_BOTH, MEET_PART>("each alone before; 256 meet");
    bad += rows_run<COUNT_SAME, true>("rows meet equally often");
    bad += rows_run<COUNT_DIFFERENT, true>("some rows once more");
    bad += rows_run<COUNT_MADE_SAME, true>("the others once more, too");
    bad += turns_run<true>("writers and readers wait for each other at mbarriers");
    bad += turns_run<false>("writers wait for nobody: MISSING");
    bad += handoff_run<ALONE_NOT, MEET_NOT>("MISSING");
    bad += handoff_run<ALONE_WRITERS, MEET_NOT>("writers alone before; MISSING");
    bad += rows_run<COUNT_SAME, false>("rows meet equally often; MISSING between the sums");
    bad += rows_run<COUNT_DIFFERENT, false>("some rows once more; MISSING between the sums");
    bad += cluster_forms();
    bad += left_out_run();
    return bad != 0;
}
