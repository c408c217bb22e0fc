/* What compute-sanitizer's racecheck makes of barriers between the two blocks of a cluster
 * (Hopper).
 *
 * exchange<TELL, BETWEEN>, the pattern of rate_find (kernels/cuda/newton_schulz_pair.cu): every
 * warp of both blocks leaves a number for all warps of both; all add up what they got.
 *
 *   TELL     how the readers learn that the numbers are there
 *   BETWEEN  of one round, or of several: what lies between reading and the next round's writing.
 *            Two places, each with an mbarrier, by turns need nothing there: who writes to a place
 *            for the second time has been told of the round between by every warp, and each told
 *            after it had read.
 *
 * compute-sanitizer of CUDA 13.0 on an H200 understands that what was written has been told of, be
 * it by cluster address or by the cluster's barrier, and reports where nobody was told. It does not
 * understand, between blocks, "read, then tell; be told, then write again" at mbarriers: <EACH,
 * PLACES> and <EACH, READ> are reported as <EACH, NOT> is (within a block it does: turns<true> of
 * named_barriers.cu). Nor a store that is read by cluster address (FETCH). st.async it does not see
 * at all: neither BYTES_NOT nor <BYTES, NOT> is reported. So sums between blocks have a place that
 * no other writing follows in the launches that racecheck looks at. racecheck_sees.sh looks whether
 * it still is so.
 */
#include <stdio.h>

#include "barrier_forms.cuh"

enum {
    TELL_NOT,       /* MISSING */
    TELL_BOTH,      /* stores by cluster address, then arrivals likewise at both blocks' mbarriers,
                     * a lane for each */
    TELL_EACH,      /* the same by one lane, one after the other */
    TELL_BYTES,     /* st.async: the mbarrier counts the bytes themselves */
    TELL_BYTES_NOT, /* the same, but nobody waits: MISSING */
    TELL_CLUSTER,   /* stores by cluster address; the cluster's barrier */
    TELL_FETCH,     /* plain stores, arrivals as TELL_BOTH; what the other has is read there */
    TELL_WARP       /* a lane stores for each block, then one tells both (token_basis, e8840e8) */
};
enum {
    BETWEEN_ONCE,
    BETWEEN_CLUSTER, /* the cluster's barrier */
    BETWEEN_PLACES,  /* nothing: two places, each with an mbarrier, by turns */
    BETWEEN_READ,    /* readers arrive at mbarriers that writers wait for */
    BETWEEN_NOT      /* MISSING */
};

#define CLUSTERS 16
#define WARPS    4 /* of a block */
#define NUMBERS  (2 * WARPS)
#define ROUNDS   5

#define COUNTED(tell) ((tell) == TELL_BYTES || (tell) == TELL_BYTES_NOT)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_PAIRS __cluster_dims__(2, 1, 1)
#else
#define IN_PAIRS /* an empty kernel that is never run */
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

static __device__ __forceinline__ void cluster_meet(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The address of the same place in block `rank`. */
static __device__ __forceinline__ unsigned place_in(unsigned place, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
    return there;
}
static __device__ __forceinline__ void put_there(unsigned to, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
static __device__ __forceinline__ void put_counted(unsigned to, float v, unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(__float_as_uint(v)), "r"(barrier)
        : "memory");
}
static __device__ __forceinline__ float get_there(unsigned from) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}
static __device__ __forceinline__ void arrive_there(unsigned barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}
static __device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void wait_cluster(unsigned barrier, int parity) {
    int done = 0;
    for (int polls = 0; !done && polls < 1 << 26; polls++)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    if (!done) __trap();
}

/* Leaves v at `mine` for both blocks. */
template <int TELL>
static __device__ __forceinline__ void leave(unsigned mine, unsigned barrier, float v) {
    const int lane = threadIdx.x % 32;
    if (TELL == TELL_EACH) {
        for (int i = 0; lane == 0 && i < 2; i++) {
            put_there(place_in(mine, i), v);
            arrive_there(place_in(barrier, i));
        }
    } else if (COUNTED(TELL)) {
        if (lane == 0) arrive_expecting(barrier, 2 * (int)sizeof v);
        if (lane < 2) put_counted(place_in(mine, lane), v, place_in(barrier, lane));
    } else if (TELL == TELL_WARP) {
        if (lane < 2) put_there(place_in(mine, lane), v);
        __syncwarp();
        if (lane == 0) asm volatile("fence.acq_rel.cluster;" ::: "memory");
        for (int i = 0; lane == 0 && i < 2; i++) arrive_there(place_in(barrier, i));
    } else if (lane < 2) {
        if (TELL == TELL_FETCH && lane == 0)
            asm volatile("st.shared::cta.f32 [%0], %1;" ::"r"(mine), "f"(v) : "memory");
        if (TELL == TELL_FETCH) __syncwarp(3);
        if (TELL != TELL_FETCH) put_there(place_in(mine, lane), v);
        if (TELL == TELL_BOTH || TELL == TELL_FETCH) arrive_there(place_in(barrier, lane));
    }
}

#endif

template <int TELL, int BETWEEN>
__global__ void IN_PAIRS __launch_bounds__(32 * WARPS)
    exchange(float *out, int late, int patience) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ float numbers[2][NUMBERS];
    __shared__ __align__(8) unsigned long long barriers[3];
    const int rank = blockIdx.x % 2, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++)
            mbarrier_init(address(barriers + i), COUNTED(TELL) ? WARPS : NUMBERS);
        mbarrier_init(address(barriers + 2), NUMBERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_meet();
    for (int round = 0; round < (BETWEEN == BETWEEN_ONCE ? 1 : ROUNDS); round++) {
        const int place = BETWEEN == BETWEEN_PLACES ? round & 1 : 0;
        const int phase = BETWEEN == BETWEEN_PLACES ? round >> 1 : round;
        const unsigned at = address(numbers[place]), barrier = address(barriers + place);
        const float mine = (float)((rank * WARPS + warp + 1) * (round + 1) + (int)blockIdx.x / 2);
        if (warp == round % WARPS && rank == round % 2) wait_clocks(late);
        if (BETWEEN == BETWEEN_READ && round > 0)
            wait_cluster(address(barriers + 2), round - 1 & 1);
        leave<TELL>(at + 4 * (rank * WARPS + warp), barrier, mine);
        if (TELL == TELL_NOT || TELL == TELL_BYTES_NOT)
            wait_clocks(patience);
        else if (TELL == TELL_CLUSTER)
            cluster_meet();
        else
            wait_cluster(barrier, phase & 1);
        if (lane < NUMBERS) {
            float v;
            if (TELL == TELL_FETCH)
                v = get_there(place_in(at + 4 * lane, lane / WARPS));
            else
                asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at + 4 * lane) : "memory");
            sum += v;
        }
        if (BETWEEN == BETWEEN_CLUSTER) cluster_meet();
        if (BETWEEN == BETWEEN_READ) {
            __syncwarp();
            if (lane == 0)
                for (int i = 0; i < 2; i++) arrive_there(place_in(address(barriers + 2), i));
        }
    }
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane == 0) out[blockIdx.x * WARPS + warp] = sum;
    cluster_meet(); /* no block ends while the other may still write to it */
#endif
}

template <int TELL, int BETWEEN> static int exchange_run(const char *name) {
    static float host[2 * CLUSTERS * WARPS];
    const bool guarded = TELL != TELL_NOT && TELL != TELL_BYTES_NOT && BETWEEN != BETWEEN_NOT;
    float *out;
    int wrong = 0;
    if (cudaMalloc(&out, sizeof host) != cudaSuccess) return 1;
    for (int late = 0; late <= 20000; late += 20000) {
        exchange<TELL, BETWEEN><<<2 * CLUSTERS, 32 * WARPS>>>(out, late, 4000000);
        if (cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) wrong++;
        for (int i = 0; i < 2 * CLUSTERS * WARPS; i++) {
            float expected = 0;
            for (int round = 0; round < (BETWEEN == BETWEEN_ONCE ? 1 : ROUNDS); round++)
                for (int j = 0; j < NUMBERS; j++)
                    expected += (float)((j + 1) * (round + 1) + i / WARPS / 2);
            wrong += host[i] != expected;
        }
    }
    cudaFree(out);
    printf("exchange<%d, %d> %-53s %s\n", TELL, BETWEEN, name, wrong ? "WRONG VALUES" : "right");
    return wrong && guarded;
}

int cluster_forms(void) {
    int device = 0, major = 0, bad = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major < 9) {
        puts("no clusters on this card");
        return 0;
    }
    bad += exchange_run<TELL_BOTH, BETWEEN_ONCE>("both told by cluster address");
    bad += exchange_run<TELL_EACH, BETWEEN_ONCE>("one after the other");
    bad += exchange_run<TELL_EACH, BETWEEN_CLUSTER>("rounds; the cluster meets between");
    bad += exchange_run<TELL_EACH, BETWEEN_PLACES>("rounds; two places");
    bad += exchange_run<TELL_EACH, BETWEEN_READ>("rounds; readers tell");
    bad += exchange_run<TELL_BYTES, BETWEEN_ONCE>("bytes counted");
    bad += exchange_run<TELL_BYTES, BETWEEN_PLACES>("bytes counted; rounds; two places");
    bad += exchange_run<TELL_CLUSTER, BETWEEN_ONCE>("the cluster meets");
    bad += exchange_run<TELL_CLUSTER, BETWEEN_PLACES>("the cluster meets; rounds; two places");
    bad += exchange_run<TELL_FETCH, BETWEEN_ONCE>("read where it was written");
    bad += exchange_run<TELL_WARP, BETWEEN_ONCE>("stored by lanes, told by one");
    bad += exchange_run<TELL_NOT, BETWEEN_ONCE>("MISSING");
    bad += exchange_run<TELL_EACH, BETWEEN_NOT>("rounds; MISSING between");
    bad += exchange_run<TELL_CLUSTER, BETWEEN_NOT>("the cluster meets; rounds; MISSING between");
    bad += exchange_run<TELL_BYTES_NOT, BETWEEN_ONCE>("bytes counted, nobody waits: MISSING");
    bad += exchange_run<TELL_BYTES, BETWEEN_NOT>("bytes counted; rounds; MISSING between");
    return bad;
}
