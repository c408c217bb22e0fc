/* Status codes and the thread's message.
 *
 * A function that can fail returns Status; 0 is success. The one who finds the fault calls
 * status_set() with a message that names the thing (file, line, key, tensor); each caller on the
 * way up may put its own place in front with status_context(). The message belongs to the thread
 * and lives until its next status_set(). "No more data" is STATUS_END: it is no error and sets no
 * message. The library never prints and never exits.
 */
#ifndef TTV_CORE_STATUS_H
#define TTV_CORE_STATUS_H

typedef enum Status {
    STATUS_OK = 0,
    STATUS_END,      /* nothing more to read: not an error */
    STATUS_USAGE,    /* the caller asked for something that does not exist (flag, key, name) */
    STATUS_DATA,     /* bad input data: malformed file, wrong shape, wrong label */
    STATUS_IO,       /* the system refused: open, read, write, fsync, disk full */
    STATUS_MEMORY,   /* out of host or device memory */
    STATUS_DEVICE,   /* no such device, driver or library failure */
    STATUS_NUMERIC,  /* non-finite values that the caller must know about */
    STATUS_STOPPED,  /* a signal asked to stop; state was saved */
    STATUS_PEER,     /* another rank is lost: the same may work when started again */
    STATUS_INTERNAL, /* a broken promise inside the library */
} Status;

/* Sets the thread's message (printf style, cut at 1023 bytes) and returns `code`. */
Status status_set(Status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the thread's message and returns `code`; does nothing when `code` is
 * STATUS_OK or STATUS_END. */
Status status_context(Status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_set(STATUS_IO, ...) with ": " and strerror(errno) appended. */
Status status_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The thread's last message; "" when there was none. */
const char *status_message(void);

/* A word for a code: "ok", "end", "usage", "data", ... */
const char *status_name(Status code);

/* Exit code of the command line for a status (docs/cli.md): OK 0, USAGE 2, DATA 3, IO 4, MEMORY and
 * DEVICE 5, NUMERIC 6, STOPPED and PEER 75, INTERNAL 70. */
int status_exit_code(Status code);

/* Returns from the enclosing function when `expr` is neither STATUS_OK. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        Status try_status_ = (expr);                                                               \
        if (try_status_ != STATUS_OK) return try_status_;                                          \
    } while (0)

#endif
