//! Names of the operations, for the log of calls and for faults.

/// A host operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A point between two steps of a task.
    Checkpoint,
    /// Take the lease of a slot.
    LeaseTake,
    /// Record a change of a slot's lease.
    LeaseNote,
    /// Drop the lease of a slot.
    LeaseDrop,
    /// List leases.
    Leases,
    /// List fences.
    Fences,
    /// Install packages.
    PackagesInstall,
    /// Load the VFIO modules.
    VfioLoad,
    /// Read the free memory.
    MemoryFree,
    /// Read the state of a function.
    FunctionState,
    /// Bind a function to `vfio-pci`.
    FunctionBind,
    /// Return a function to the host's driver.
    FunctionGiveBack,
    /// Reset a function.
    FunctionReset,
    /// Bring an image into the store.
    ImageFetch,
    /// Verify a stored image.
    ImageVerify,
    /// Create a guest's folder.
    InstanceMake,
    /// Remove a guest's folder.
    InstanceRemove,
    /// List guests' folders.
    Instances,
    /// Write a file of a guest's folder.
    InstanceWrite,
    /// Read a file of a guest's folder.
    InstanceRead,
    /// Create the seed disk.
    SeedBuild,
    /// Add a reservation.
    ReservationAdd,
    /// Remove a reservation.
    ReservationRemove,
    /// List reservations.
    Reservations,
    /// Check that a drive is the right one and free.
    DriveCheck,
    /// Write an image to a drive.
    DriveWriteImage,
    /// Wipe a drive.
    DriveWipe,
    /// Define a guest.
    DomainDefine,
    /// Start a guest.
    DomainStart,
    /// Ask a guest to shut down.
    DomainShutdown,
    /// Power a guest off.
    DomainDestroy,
    /// Undefine a guest.
    DomainUndefine,
    /// Read the state of a guest.
    DomainState,
    /// List guests.
    Domains,
    /// Ask a guest whether it is ready.
    GuestAsk,
    /// Measure a guest.
    GuestMeasure,
    /// Read a console.
    ConsoleRead,
    /// Trim a console.
    ConsoleTrim,
    /// Take the lease of the machine.
    MachineLeaseTake,
    /// Take the lease of the machine from an earlier holder.
    MachineLeaseTakeOver,
    /// Record a change of the machine's lease.
    MachineLeaseNote,
    /// Drop the lease of the machine.
    MachineLeaseDrop,
    /// Read the lease of the machine.
    MachineLease,
    /// Read the fence of the machine.
    MachineFence,
    /// Find a user by name.
    UserFind,
    /// Find a user by number.
    UserOfNumber,
    /// Choose a number for a new user.
    UserNumber,
    /// Create a user.
    UserCreate,
    /// Write the keys of a user.
    UserKeys,
    /// Grant or revoke sudo for a user.
    UserSudo,
    /// Lock a user out.
    UserClose,
    /// End the jobs of a user.
    UserJobsEnd,
    /// End the sessions and processes of a user.
    UserProcessesEnd,
    /// Remove the files of a user.
    UserFilesRemove,
    /// Remove a user.
    UserRemove,
    /// List what is left of a user.
    UserLeftovers,
}
