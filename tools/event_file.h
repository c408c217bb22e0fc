/* TensorBoard's event files: scalars over steps, in the framing of TFRecord.
 *
 * A record is a u64 length, its masked CRC-32C, the data, and their masked CRC-32C, all little
 * endian; the mask turns the CRC right by 15 and adds 0xa282ead8. The data are the protocol buffer
 * message Event: wall_time = 1 (double), step = 2, and one of file_version = 3, summary = 5 (values
 * with tag = 1 and simple_value = 2) and session_log = 7 (status = 1; START is 1).
 */
#ifndef TTV_TOOLS_EVENT_FILE_H
#define TTV_TOOLS_EVENT_FILE_H

#include <stdint.h>

#include "core/status.h"

typedef struct EventFile EventFile;

/* A new file in `folder`, which is made when it is not there. Readers drop what earlier files of
 * the folder say of steps from first_step on: a resumed run does not fold back over itself. */
Status event_file_open(const char *folder, int64_t first_step, EventFile **out);

/* One value of the record that event_file_flush() writes; values that are not finite are left out.
 */
void event_file_add(EventFile *e, const char *tag, double value);
/* Writes what was added as one record of `step`; nothing when nothing was added. STATUS_IO. */
Status event_file_flush(EventFile *e, int64_t step);

/* NULL is allowed. STATUS_IO when the last bytes could not be written. */
Status event_file_close(EventFile *e);

#endif
