//! Names of the operations, for the log of calls and for faults.

/// An operation of the seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A point between two steps of a task.
    Checkpoint,
    /// A slot is taken.
    LeaseTake,
    /// What became of a slot is written down.
    LeaseNote,
    /// A slot is given back.
    LeaseDrop,
    /// Leases are listed.
    Leases,
    /// Fences are listed.
    Fences,
    /// Packages are installed.
    PackagesInstall,
    /// The modules of VFIO are loaded.
    VfioLoad,
    /// Free memory is asked for.
    MemoryFree,
    /// A function is looked at.
    FunctionState,
    /// A function goes to `vfio-pci`.
    FunctionBind,
    /// A function goes back to the host's driver.
    FunctionGiveBack,
    /// A function is reset.
    FunctionReset,
    /// An image is brought into the store.
    ImageFetch,
    /// A stored image is read again.
    ImageVerify,
    /// A guest's folder is made.
    InstanceMake,
    /// A guest's folder is removed.
    InstanceRemove,
    /// Guests' folders are listed.
    Instances,
    /// A file of a guest's folder is written.
    InstanceWrite,
    /// A file of a guest's folder is read.
    InstanceRead,
    /// The seed disk is made.
    SeedBuild,
    /// An address is reserved.
    ReservationAdd,
    /// A reservation ends.
    ReservationRemove,
    /// Reservations are listed.
    Reservations,
    /// A drive is proven to be the right one and free.
    DriveCheck,
    /// An image is written to a drive.
    DriveWriteImage,
    /// A drive is wiped.
    DriveWipe,
    /// A guest is made known to the hypervisor.
    DomainDefine,
    /// A guest is started.
    DomainStart,
    /// A guest is asked to shut down.
    DomainShutdown,
    /// A guest loses its power.
    DomainDestroy,
    /// The hypervisor forgets a guest.
    DomainUndefine,
    /// The hypervisor is asked about a guest.
    DomainState,
    /// Guests of the hypervisor are listed.
    Domains,
    /// A guest is asked whether it is ready.
    GuestAsk,
    /// A guest is asked what it measures.
    GuestMeasure,
    /// A console is read.
    ConsoleRead,
    /// A console is kept within its budget.
    ConsoleTrim,
    /// The machine is taken.
    MachineLeaseTake,
    /// The machine is taken from an earlier holder.
    MachineLeaseTakeOver,
    /// What became of the machine is written down.
    MachineLeaseNote,
    /// The machine is given back.
    MachineLeaseDrop,
    /// The machine's lease is looked at.
    MachineLease,
    /// What the machine remembers of its last lease is looked at.
    MachineFence,
    /// A user is looked for.
    UserFind,
    /// The user of a number is looked for.
    UserOfNumber,
    /// A number for a new user is chosen.
    UserNumber,
    /// A user is made.
    UserCreate,
    /// The keys of a user are written.
    UserKeys,
    /// The right of a user to become root is given or taken.
    UserSudo,
    /// A user cannot log in any more.
    UserClose,
    /// What would start on behalf of a user is ended.
    UserJobsEnd,
    /// Sessions and processes of a user are ended.
    UserProcessesEnd,
    /// Files of a user are removed.
    UserFilesRemove,
    /// A user is forgotten.
    UserRemove,
    /// What is left of a user is looked for.
    UserLeftovers,
}
