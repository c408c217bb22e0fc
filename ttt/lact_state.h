/* The fast weights of a scene as a value: what reconstruction writes and rendering reads.
 *
 * W0', W1', W2' of every layer for `batch` scenes, F32, on the device in memory of its own. The
 * file form is safetensors with layers.<i>.w0 [B,H,e,h], layers.<i>.w1 [B,H,h,e] and layers.<i>.w2
 * [B,H,e,h], and the caller's metadata. Threads: one at a time, like its Device.
 */
#ifndef TTV_TTT_LACT_STATE_H
#define TTV_TTT_LACT_STATE_H

#include "core/safetensors.h"
#include "ttt/lact.h"

typedef struct LactState {
    Device *device;
    int64_t layers, batch, heads, head_dim, hidden; /* H, e, h */
    void *memory;                                   /* all of it, on the device */
    /* The same once more as the fused form reads it: [W0 | W2], then W1, by layer. After a store in
     * that form it is what counts (`fused_counts`), otherwise it is made when first asked for. */
    void *ready;
    DType ready_type;
    bool fused_counts, ready_fresh;
} LactState;

/* Undefined values. STATUS_USAGE when a size is below 1, STATUS_MEMORY. */
Status lact_state_new(Device *d, int64_t layers, int64_t batch, int64_t heads, int64_t head_dim,
                      int64_t hidden, LactState **out);
void lact_state_free(LactState *s);

/* W_j' of a layer in F32; j 0, 1, 2. None, with the thread's message, when it had to be taken out
 * of the fused form and that failed. */
Tensor lact_state_tensor(const LactState *s, int64_t layer, int j);
/* Copies a layer's fast weights in; one with B = 1 is repeated for every scene. */
Status lact_state_store(LactState *s, int64_t layer, LactFast fast);
/* Where a layer's fast weights lie in the fused form, to be written by a pass instead of a copy;
 * they count from now on, as after a store in that form of all layers. That takes memory once. */
Status lact_state_room(LactState *s, Tape *t, int64_t layer, LactWeights *to);
/* As constants of the tape's pass: in the form of the last store, and in the fused one, which is
 * made where it is not there. That takes memory once, not to be captured in a graph. */
LactFast lact_state_fast(const LactState *s, Tape *t, int64_t layer);

Status lact_state_save(const LactState *s, const char *path, const SafeMeta *meta,
                       int64_t meta_count);
/* Sizes come from the file. STATUS_DATA names a tensor that is missing, unknown, ill-shaped or not
 * finite. *out is the caller's; `f` may be closed afterwards. */
Status lact_state_load(Device *d, const SafeFile *f, LactState **out);

#endif
