/* The tape: a flat record of one forward pass, replayed backwards for gradients.
 *
 * An op (nn/ops_*.c) checks shapes, takes its output from the device's step arena, calls its kernel
 * and records a Node; its backward sits right below it. Model code is forward only.
 *
 * Errors are sticky: once an op fails, every later op returns the tape's poison value at once and
 * tape_status() tells the first failure. Look at it once per pass.
 *
 * Ownership: Vars live in the tape and die at tape_reset(); parameters are Vars that live in
 * Params. Memory: while recording, values live until the backward has passed them, then go back to
 * the arena. Without recording, model code gives a value back with tape_drop() after its last use.
 */
#ifndef TTV_NN_TAPE_H
#define TTV_NN_TAPE_H

#include "kernels/kernels.h"

typedef struct Tape Tape;

typedef struct Var {
    Tensor value;
    Tensor grad; /* memory for the gradient; data NULL until first needed */
    bool wants_grad;
    bool grad_ready; /* something was written: the next contribution accumulates */
    bool is_param;   /* lives in Params: never freed by the tape */
    bool is_view;    /* shares the memory of `base` (value and grad) */
    bool owns_value; /* value came from the step arena: the tape gives it back */
    bool owns_grad;
    bool released;    /* tape_release(): the value is gone, gradients still pass */
    struct Var *base; /* of a view: never itself a view */
    const char *name; /* for messages; may be NULL */
} Var;

#define NODE_INPUTS 8
#define NODE_SAVED  9
#define NODE_MORE   2

/* A part of a model as a function of one value; `user` must live until the backward. */
typedef Var *(*TapeBlock)(void *user, Tape *t, Var *x);

typedef struct Node Node;
struct Node {
    const char *op;
    Status (*backward)(Tape *t, Node *n);
    Var *in[NODE_INPUTS];
    Var *out;
    Var *more[NODE_MORE]; /* further outputs, none or from the front (tape_record_more) */
    /* The backward reads scale[b] d out (scale F32 [B], or NULL); `scaled` holds it when the node
     * behind wrote it together with d out (tape_grad_last), and is the backward's to give back. */
    Var *scale;
    Tensor scaled;
    Tensor saved[NODE_SAVED]; /* step-arena memory of the node, freed after its backward */
    union {
        float f[4];
        VitttShape vittt;
        NewtonSchulz newton_schulz;
        struct {
            NewtonSchulz steps;
            float offset;
        } lact;
        struct {
            TapeBlock block;
            void *user;
        } again;
    } u;
    int64_t i[6];
};

Status tape_new(Device *d, Tape **out);
void tape_free(Tape *t);

/* Starts a pass: forgets all Vars and nodes and resets the step arena. */
void tape_reset(Tape *t, bool recording);
bool tape_recording(const Tape *t);
Device *tape_device(const Tape *t);
/* dtype of activations for this tape: F32 or BF16 (set once, before the first pass). */
void tape_set_act(Tape *t, DType act);
DType tape_act(const Tape *t);

/* Between pause and resume ops record nothing, and tape_drop() gives memory back, although the pass
 * is recorded: for values that are constants to it. Returns what the caller hands to resume. */
bool tape_pause(Tape *t);
void tape_resume(Tape *t, bool recording);

/* What ops keep for their backward of values that a pass over what they keep anyway gives again:
 * all of them; all but normed rows, which the norm's backward leaves on its way; or none. Set
 * before an op; all at first. */
typedef enum TapeThrift { TAPE_LAVISH, TAPE_NORMS_AGAIN, TAPE_FRUGAL } TapeThrift;
void tape_set_thrift(Tape *t, TapeThrift thrift);
TapeThrift tape_thrift(const Tape *t);

/* STATUS_OK, or the first failure of the pass with its message set again for the calling thread. */
Status tape_status(const Tape *t);
/* Records a failure with the thread's message (first one wins) and returns the poison Var. */
Var *tape_fail(Tape *t, Status s);
/* NULL while all is well, otherwise the poison Var: what an op returns then. Its value has no data
 * and a shape of ones, so that model code may still look at it. */
Var *tape_poison(Tape *t);

/* A value the tape did not compute. The memory stays the caller's. */
Var *tape_input(Tape *t, Tensor value, const char *name);
/* As tape_input, and its gradient is wanted (tests, d loss / d image). */
Var *tape_input_grad(Tape *t, Tensor value, const char *name);

/* The same memory under another shape of equal count; gradients meet in the base. */
Var *tape_view(Tape *t, Var *base, int rank, const int64_t *shape);

/* Building an op: output Var with step-arena memory. */
Var *tape_output(Tape *t, DType dtype, int rank, const int64_t *shape);
/* Memory that lives as long as the node (saved) or until tape_reset. */
Status tape_take(Tape *t, DType dtype, int rank, const int64_t *shape, Tensor *out);
void tape_give(Tape *t, Tensor memory);
/* F32 [count] of zeros, to be read only: made in the first pass, kept to the tape's end, so that a
 * pass need not clear memory. None (and STATUS_OK) when too many lengths were asked for. */
Status tape_zeros(Tape *t, int64_t count, Tensor *out);
/* Appends a node for `out` when recording and any input wants a gradient; sets out->wants_grad.
 * Returns the node to fill in, or NULL when nothing is to be recorded (then saved tensors are not
 * needed). */
Node *tape_record(Tape *t, const char *op, Status (*backward)(Tape *, Node *), Var *out, int inputs,
                  Var *const *in);
/* A further output of a recorded node (NULL: nothing to do). The backward runs when a gradient has
 * reached any output; tape_grad_of() then is what another one got, cleared where none did. */
void tape_record_more(Node *n, Var *out);
Status tape_grad_of(Tape *t, Var *out, Tensor *grad);
/* Whether tape_record() will record for these inputs (to decide on saving before the kernel runs).
 */
bool tape_will_record(const Tape *t, int inputs, Var *const *in);

/* For backward functions: where the gradient of v goes. Takes memory on first use, marks it ready.
 * None when v is NULL, wants no gradient, or memory ran out (then the tape has failed). F32 for
 * parameters, otherwise the dtype of the value. */
Grad tape_grad(Tape *t, Var *v);
/* As tape_grad, for a kernel that can write d v and scale[b] d v at once: when v comes from the
 * node right in front, whose backward wants that and to whose gradient nobody adds any more,
 * *scaled is memory for it and *scale the factors; none otherwise. */
Grad tape_grad_last(Tape *t, Var *v, Tensor *scaled, Tensor *scale);
/* d to (+)= d from, equal shapes. The last use of d from in its backward: when `to` has no gradient
 * yet, it takes over the memory instead of copying it. */
Status tape_grad_pass(Tape *t, Var *to, Var *from);
/* d a (+)= d out and d b (+)= d out, out being the output of the node whose backward runs; b was
 * computed after a. Without a copy when the order of the nodes allows b to read what a takes over.
 */
Status tape_grad_fork(Tape *t, Var *a, Var *b, Var *out);

/* loss must be F32 [1]; seeds d loss = `seed` (1/accumulation steps) and walks the nodes from the
 * end. Frees values, saved memory and gradients on the way, except those of inputs and parameters
 * and the loss's value. A node that no gradient reached is passed over. */
Status tape_backward(Tape *t, Var *loss, float seed);

/* block(user, t, x) that keeps nothing but x and its result: the backward runs the block once more
 * to have the values inside. The same bits, less memory, a second forward. The block depends on x,
 * parameters and inputs that stay as they are until the backward. */
Var *tape_recompute(Tape *t, Var *x, TapeBlock block, void *user);

/* The caller needs v no more. Recording, or v a view, an input or a parameter: no effect. Otherwise
 * its memory goes back to the arena, and neither v nor a view of it may be used again. */
void tape_drop(Tape *t, Var *v);
/* As tape_drop, and recording too: no later op reads v, nor does any backward. v must not have
 * views. */
void tape_release(Tape *t, Var *v);

/* Statistics: nodes of the last pass; calls to the device's allocator by its four arenas so far,
 * which stay constant after the first step. */
int64_t tape_nodes(const Tape *t);
int64_t tape_growths(const Tape *t);

#endif
